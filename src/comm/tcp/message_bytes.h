// The bytes of messages from one rank to another, as one stream: from the sender's memory into the receiver's.
//
// Both ends add messages in the order of their grants, so a position in the stream means the same to both. The thread
// that makes progress on messages adds; one thread of the transport takes. Once cancelled, it returns no memory that
// was added.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>

namespace keepstep::comm::tcp {

class MessageBytes {
 public:
  // Any thread. The memory must stay valid until moved() has passed it, or cancel().
  void add(std::span<std::byte> message);
  void cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_seq_cst); }
  // How many of the added bytes are with the system or were received.
  uint64_t moved() const { return moved_.load(std::memory_order_seq_cst); }

  // The rest is for one thread of the transport.
  struct Piece {
    uint64_t position;
    std::span<std::byte> bytes;
    bool ends_message;
  };
  // The bytes after those already taken, at most `most` and of one message; std::nullopt if there are none.
  std::optional<Piece> take(size_t most);
  // Exactly `bytes` bytes from `position`; std::nullopt if those are not the next ones.
  std::optional<Piece> take_exactly(uint64_t position, size_t bytes);
  // To be called after the taken bytes were sent or received.
  void add_moved(size_t bytes) { moved_.fetch_add(bytes, std::memory_order_seq_cst); }

 private:
  Piece take_front(size_t bytes);

  std::mutex mutex_;
  std::deque<std::span<std::byte>> messages_;  // what is left of them
  uint64_t taken_ = 0;
  std::atomic<uint64_t> moved_ = 0;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace keepstep::comm::tcp
