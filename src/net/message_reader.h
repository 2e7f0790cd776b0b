// How messages are framed in a byte stream: a four-byte little-endian length, then that many bytes. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep::net {

inline constexpr size_t kLengthBytes = 4;
// The prefix of a message of `bytes`.
std::array<char, kLengthBytes> length_of_message(size_t bytes);

// Assembles messages from the bytes that arrive. The length is checked before memory is allocated.
class MessageReader {
 public:
  explicit MessageReader(size_t max_message_bytes) : max_message_bytes_(max_message_bytes) {}

  // Where to put the next bytes; never empty, and never larger than the rest of the message.
  std::span<char> missing();
  // Records that `bytes` of missing() have arrived from `peer`. Returns whether the message is whole now; if so, take()
  // it before the next call. INVALID_ARGUMENT: the next message is over the limit; nothing can be read after this.
  StatusOr<bool> take_in(size_t bytes, std::string_view peer);
  std::string take();

 private:
  const size_t max_message_bytes_;
  std::array<char, kLengthBytes> length_{};
  size_t length_got_ = 0;
  std::string message_;  // the bytes that arrived, and room for the rest
  size_t message_got_ = 0;
};

}  // namespace keepstep::net
