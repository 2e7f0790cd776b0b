// A window that slides over the bytes of a file: what has been read and not yet used, in one piece.
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
  static constexpr size_t kPadding = 64;  // readable bytes behind `view`: parsers read ahead of what they are given
  static constexpr size_t kFirstBytes = size_t{1} << 20;

  // `most`: bytes that one window may have (one document must fit). `path` is for messages.
  SlidingBuffer(std::unique_ptr<ByteSource> source, std::string path, size_t most);

  // Unused bytes; valid until `more`.
  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  // Reads more behind `view`; false at the end of the file. OUT_OF_RANGE: the window is full. Errors of the source.
  StatusOr<bool> more();
  // The first `bytes` of `view` are used.
  void drop(size_t bytes) { begin_ += bytes; }

  // How far the file itself was read (ByteSource::position).
  uint64_t position() const { return source_->position(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string path_;
  size_t most_;
  std::vector<char> buffer_;  // kPadding longer than the window may be now
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace keepstep::data
