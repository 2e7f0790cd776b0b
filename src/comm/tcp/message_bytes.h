// The bytes of messages from one rank to another, as one stream: from the memory of who sends into that of who
// receives.
//
// Both ends add messages in the order of their grants, so a position in the stream means the same to both. The thread
// that makes progress on messages adds; one thread of the transport takes. Once cancelled, no memory that was added is
// given out any more.
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
  // From any thread. The memory must stay until moved() has passed it, or cancel().
  void add(std::span<std::byte> message);
  void cancel();
  bool cancelled() const { return cancelled_.load(std::memory_order_seq_cst); }
  // How many bytes of all that were added are with the system, or came.
  uint64_t moved() const { return moved_.load(std::memory_order_seq_cst); }

  // The rest by one thread of the transport.
  struct Piece {
    uint64_t position;
    std::span<std::byte> bytes;
    bool ends_message;
  };
  // The bytes that follow those taken before, at most `most` and of one message; nothing: none was added.
  std::optional<Piece> take(size_t most);
  // Those that begin at `position`, exactly `bytes`; nothing: that is not what follows.
  std::optional<Piece> take_exactly(uint64_t position, size_t bytes);
  // After what was taken went or came.
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
