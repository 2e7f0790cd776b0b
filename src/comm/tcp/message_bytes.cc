#include "comm/tcp/message_bytes.h"

#include <algorithm>

namespace keepstep::comm::tcp {

void MessageBytes::add(std::span<std::byte> message) {
  const std::lock_guard lock(mutex_);
  if (!cancelled() && !message.empty()) {
    messages_.push_back(message);
  }
}

void MessageBytes::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_.store(true, std::memory_order_seq_cst);
  messages_.clear();
}

MessageBytes::Piece MessageBytes::take_front(size_t bytes) {
  std::span<std::byte>& front = messages_.front();
  const Piece piece{taken_, front.first(bytes), bytes == front.size()};
  taken_ += bytes;
  front = front.subspan(bytes);
  if (piece.ends_message) {
    messages_.pop_front();
  }
  return piece;
}

std::optional<MessageBytes::Piece> MessageBytes::take(size_t most) {
  const std::lock_guard lock(mutex_);
  if (messages_.empty()) {
    return std::nullopt;
  }
  return take_front(std::min(most, messages_.front().size()));
}

std::optional<MessageBytes::Piece> MessageBytes::take_exactly(uint64_t position, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (messages_.empty() || position != taken_ || bytes > messages_.front().size()) {
    return std::nullopt;
  }
  return take_front(bytes);
}

}  // namespace keepstep::comm::tcp
