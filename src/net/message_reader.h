// How messages lie in a stream of bytes: four bytes of length, little endian, and that many bytes. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep::net {

inline constexpr size_t kLengthBytes = 4;
// What goes in front of a message of `bytes`.
std::array<char, kLengthBytes> length_of_message(size_t bytes);

// Puts messages together from what arrives. The length is checked before memory is taken.
class MessageReader {
 public:
  explicit MessageReader(size_t max_message_bytes) : max_message_bytes_(max_message_bytes) {}

  // Where the next bytes belong; never empty, and never more than the message lacks.
  std::span<char> missing();
  // `bytes` of missing() have come from `peer`. Whether the message is whole now; then take() it before the next call.
  // INVALID_ARGUMENT: one over the limit is announced; nothing can be read after it.
  StatusOr<bool> take_in(size_t bytes, std::string_view peer);
  std::string take();

 private:
  const size_t max_message_bytes_;
  std::array<char, kLengthBytes> length_{};
  size_t length_got_ = 0;
  std::string message_;  // what came of it, and room for the rest
  size_t message_got_ = 0;
};

}  // namespace keepstep::net
