// Connects a rank to the rings of its node's agent (src/agent/rings/ring_service.h). Messages:
// docs/formats/wire_worker.md#rings.
//
// One link is one process's place in one ring. The agent takes the end of the link for the end of the process, and
// frees its row. One thread.
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

  // Joins the ring of this name, for items from `position` on. The first process to join makes it; a ring that cannot
  // provide `position`, or has another form, is replaced. May be called again once the earlier reader is gone.
  // RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INVALID_ARGUMENT: the agent's reason. UNAVAILABLE: the agent is gone.
  StatusOr<std::unique_ptr<data::RingReader>> open(const std::string& name, const data::RingSpec& spec,
                                                   uint64_t position);
  // Asks whether this process may start the ring's loader process now; if so, it must hand this socket to it. An
  // invalid Fd: another process starts it, or has started it.
  StatusOr<Fd> ask_for_loader();
  // The memory of the ring opened last, for a loader process.
  std::shared_ptr<data::RingMemory> memory() const { return memory_; }
  // A clean end, after the reader's: the last process to leave ends the ring and its loader. Idempotent.
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
