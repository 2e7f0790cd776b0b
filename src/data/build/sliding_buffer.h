// A window that slides over the bytes of a file: what has been read and not yet used, contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/build/byte_source.h"

namespace keepstep::data {

class SlidingBuffer {
 public:
  static constexpr size_t kPadding = 64;  // readable bytes behind `view`: parsers read past the end of their input
  static constexpr size_t kFirstBytes = size_t{1} << 20;

  // `most`: the largest size of a window in bytes (one document must fit). `path` is for messages.
  SlidingBuffer(std::unique_ptr<ByteSource> source, std::string path, size_t most);

  // Unused bytes; valid until `more`.
  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  // Reads more behind `view`; false at the end of the file. OUT_OF_RANGE: the window is full. Otherwise the source's
  // errors.
  StatusOr<bool> more();
  // Marks the first `bytes` of `view` as used.
  void drop(size_t bytes) { begin_ += bytes; }

  // How far the file itself has been read (ByteSource::position).
  uint64_t position() const { return source_->position(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string path_;
  size_t max_;
  std::vector<char> buffer_;  // kPadding longer than the largest window it can hold now
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace keepstep::data
