// The words of the two ordered pairs between this rank and one peer, kept in step with the peer's copies; and the bytes
// of their messages.
//
// Only one of the two ends writes each field of a PairBlock (layout.h). The code above (channel.h) writes this end's
// fields and reads the other's; a mirror sends the peer what changed in the former and writes what the peer sends into
// the latter. Counters are sent after what they count, so both ends see what they would see in shared memory, only
// later. Nothing overflows: no more offers are open than there is room for, and bytes only arrive for granted messages.
//
// Pure memory: no sockets, no threads. All contents of a frame are checked against the counters before use. One thread
// sends (next(), end()) and one receives (target(), apply()); the code above may run in another, from which it adds or
// cancels messages.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/layout.h"
#include "comm/tcp/message_bytes.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {

class PairMirror {
 public:
  // `frame_bytes`: the longest piece of a message sent in one frame.
  PairMirror(Rank peer, size_t frame_bytes) : peer_(peer), frame_bytes_(frame_bytes) {}

  PairBlock& outgoing() { return blocks_->out; }  // self -> peer
  PairBlock& incoming() { return blocks_->in; }   // peer -> self
  MessageBytes& outgoing_bytes() { return outgoing_bytes_; }
  MessageBytes& incoming_bytes() { return incoming_bytes_; }

  // The next thing that the peer does not know yet. Its payload is the sender's memory, valid until cancelled.
  struct Telling {
    Frame frame;
    const std::byte* payload = nullptr;
    bool ends_message = false;
  };
  std::optional<Telling> next();

  // Where the payload of a kBytes frame belongs; std::nullopt if no correct peer could have sent it. Once the messages
  // are cancelled, `to` is null.
  struct Target {
    std::byte* to = nullptr;
    bool ends_message = false;
  };
  std::optional<Target> target(const Frame& frame);
  // Applies a completely received frame. False if no correct peer could have sent it.
  bool apply(const Frame& frame);
  // The link broke for good: ends both pairs. Call once.
  void end(std::string why);
  const std::string& why_ended() const { return why_ended_; }  // valid once a pair's words say so; any thread

 private:
  bool apply_read(const Frame& frame);

  struct Blocks {
    PairBlock out{};
    PairBlock in{};
  };
  const Rank peer_;
  const size_t frame_bytes_;
  std::unique_ptr<Blocks> blocks_ = std::make_unique<Blocks>();
  MessageBytes outgoing_bytes_;
  MessageBytes incoming_bytes_;
  // What the peer knows. The sending thread writes them, except `end_told_`; the receiving one reads them.
  std::atomic<uint64_t> offers_told_ = 0;
  std::atomic<uint64_t> grants_told_ = 0;
  uint64_t offers_read_told_ = 0;
  uint64_t grants_read_told_ = 0;
  std::atomic<bool> end_told_[2] = {};
  std::string why_ended_;
};

}  // namespace keepstep::comm::tcp
