// A rank's way to the rings of its node's agent (src/agent/rings/ring_service.h); messages:
// docs/formats/wire_worker.md#rings.
//
// One link is one process's place in one ring. The agent takes the link's end for the process's: its row is free then.
// One thread.
#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "data/ring/ring.h"
#include "messages/ring_messages.h"

namespace keepstep::rank {

class RingLink {
 public:
  // NOT_FOUND: nobody listens at `path`.
  static StatusOr<std::unique_ptr<RingLink>> connect(const std::string& path);
  ~RingLink();

  // Joins the ring of this name, for items from `position` on; the first one to come makes it, and one that cannot give
  // `position`, or is of another form, is replaced. May be called again: then the earlier reader must be gone.
  // RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INVALID_ARGUMENT: the agent's reason. UNAVAILABLE: the agent is gone.
  StatusOr<std::unique_ptr<data::RingReader>> open(const std::string& name, const data::RingSpec& spec,
                                                   uint64_t position);
  // Whether this process may start the ring's loader process now: then it is to hand this socket to it. An invalid Fd:
  // somebody else does, or has.
  StatusOr<Fd> ask_for_loader();
  // Of the ring that was opened last, for a loader process.
  std::shared_ptr<data::RingMemory> memory() const { return memory_; }
  // A clean end, after the reader's: if it is the last one of the ring, the ring and its loader go. Idempotent.
  void leave();

 private:
  struct Answer {
    uint32_t row = 0;
    std::vector<Fd> fds;
  };
  explicit RingLink(PacketSocket socket);
  StatusOr<Answer> request(const std::string& message);
  PacketSocket socket_;
  pid_t pid_;
  std::shared_ptr<data::RingMemory> memory_;
};

}  // namespace keepstep::rank
