// The words and rings of the two ordered pairs between this rank and one peer, kept in step with the peer's copies.
//
// Each field of a PairBlock is written by one of its two ends (layout.h). The code above (channel.h) writes this end's
// fields and reads the other's; a mirror tells the peer what changed in the former and writes what the peer told into
// the latter. Counters are told after what they count, so both ends see what they would see in shared memory, only
// later. Nothing overflows: the sender's end never runs ahead of what the receiver's end, as told, has room for.
//
// Pure memory: no sockets, no threads. Everything a frame says is checked against the counters before it is believed.
// One thread only; the code above may run in another.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/layout.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {

class PairMirror {
 public:
  PairMirror(Rank peer, size_t ring_bytes);

  PairBlock& outgoing() { return blocks_->out; }  // self -> peer
  PairBlock& incoming() { return blocks_->in; }   // peer -> self
  std::byte* outgoing_ring() { return rings_.get(); }
  std::byte* incoming_ring() { return rings_.get() + ring_bytes_; }
  size_t ring_bytes() const { return ring_bytes_; }

  // The next thing that the peer does not know yet; its payload stays as it is until the peer tells that it read it.
  struct Telling {
    Frame frame;
    const std::byte* payload;
  };
  std::optional<Telling> next();

  // Where the payload of a kBytes frame belongs; null when no end that keeps the rules could have sent this.
  std::byte* place(const Frame& frame);
  // After a frame came whole: writes what it says. False when no end that keeps the rules could have sent it.
  bool apply(const Frame& frame);
  // The link broke for good: both pairs end. Once.
  void end(std::string why);
  const std::string& why_ended() const { return why_ended_; }  // once a pair's words say so; any thread

 private:
  bool apply_read(const Frame& frame);

  struct Blocks {
    PairBlock out{};
    PairBlock in{};
  };
  const Rank peer_;
  const size_t ring_bytes_;
  std::unique_ptr<Blocks> blocks_ = std::make_unique<Blocks>();
  std::unique_ptr<std::byte[]> rings_;
  // What the peer knows.
  uint64_t offers_told_ = 0;
  uint64_t bytes_told_ = 0;
  uint64_t grants_told_ = 0;
  uint64_t offers_read_told_ = 0;
  uint64_t bytes_read_told_ = 0;
  uint64_t grants_read_told_ = 0;
  bool end_told_[2] = {};
  std::string why_ended_;
};

}  // namespace keepstep::comm::tcp
