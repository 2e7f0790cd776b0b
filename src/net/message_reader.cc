#include "net/message_reader.h"

#include <cstdint>
#include <utility>

namespace keepstep::net {

std::array<char, kLengthBytes> length_of_message(size_t bytes) {
  std::array<char, kLengthBytes> length{};
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(bytes >> (8 * i));
  }
  return length;
}

std::span<char> MessageReader::missing() {
  return length_got_ < length_.size() ? std::span(length_).subspan(length_got_)
                                      : std::span(message_).subspan(message_got_);
}

StatusOr<bool> MessageReader::take_in(size_t bytes, std::string_view peer) {
  if (length_got_ == length_.size()) {
    message_got_ += bytes;
  } else if (length_got_ += bytes; length_got_ == length_.size()) {
    size_t size = 0;
    for (size_t i = 0; i < length_.size(); ++i) {
      size |= size_t{static_cast<uint8_t>(length_[i])} << (8 * i);
    }
    if (size > max_message_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s announced a message of %d bytes; at most %d are allowed: the connection is closed", peer,
                          size, max_message_bytes_));
    }
    message_.resize(size);
    message_got_ = 0;
  }
  return length_got_ == length_.size() && message_got_ == message_.size();
}

std::string MessageReader::take() {
  length_got_ = 0;
  return std::exchange(message_, {});
}

}  // namespace keepstep::net
