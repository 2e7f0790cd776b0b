// The bytes of a file, decompressed as they are read: plain, gzip (RFC 1952) or Zstandard (RFC 8878), with any number
// of members or frames. Sequential, from the first byte to the last; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace keepstep::data {

enum class Compression { kNone, kGzip, kZstd };

class ByteSource {
 public:
  // `begin`: the first byte to read in a plain file; compressed files are read from their start (begin is 0). System
  // errors name the path.
  static StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, Compression compression, uint64_t begin);
  virtual ~ByteSource() = default;

  // Up to `most` (> 0) bytes into `out`; 0 at the end. DATA_LOSS: compressed data that is damaged or ends too early;
  // what was read before is good.
  virtual StatusOr<size_t> read(char* out, size_t most) = 0;

  // How far the file itself has been read, in (compressed) bytes from its start.
  virtual uint64_t position() const = 0;
};

}  // namespace keepstep::data
