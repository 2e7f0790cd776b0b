#include "data/build/sliding_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace keepstep::data {

SlidingBuffer::SlidingBuffer(std::unique_ptr<ByteSource> source, std::string path, size_t most)
    : source_(std::move(source)), path_(std::move(path)), max_(most), buffer_(kFirstBytes + kPadding) {}

StatusOr<bool> SlidingBuffer::more() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ + kPadding == buffer_.size()) {
    if (end_ >= max_) {
      return absl::OutOfRangeError(
          absl::StrFormat("'%s': a document of more than %d MiB; split it", path_, max_ >> 20));
    }
    buffer_.resize(std::min(2 * end_, max_) + kPadding);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const size_t got, source_->read(buffer_.data() + end_, buffer_.size() - kPadding - end_));
  end_ += got;
  return got > 0;
}

}  // namespace keepstep::data
