// The bytes of a file, decompressed on the way: plain, gzip (RFC 1952) or Zstandard (RFC 8878), of any number of
// members or frames. From the first byte to the last; one thread.
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
  // `begin`: the first byte that is read, for plain files; compressed ones are read from their start (begin is 0).
  // Errors of the system name the path.
  static StatusOr<std::unique_ptr<ByteSource>> open(const std::string& path, Compression compression, uint64_t begin);
  virtual ~ByteSource() = default;

  // Up to `most` (> 0) bytes into `out`; 0 is the end. DATA_LOSS: compressed data that are damaged or end too early;
  // what was read before is good.
  virtual StatusOr<size_t> read(char* out, size_t most) = 0;

  // How far it has read the file itself, in (compressed) bytes from its start.
  virtual uint64_t position() const = 0;
};

}  // namespace keepstep::data
