// A target's line to one source on another node, over the communicator of a generation.
//
// The buffers for an answer exist before its request is sent, so its bytes can be received at once. Nothing here has a
// timeout of its own (one in mid-message would end all messages between the two ranks): callers decide how long they
// wait, and a silent source's late answers still land here.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "comm/communicator.h"
#include "state/peer.h"

namespace keepstep::rank {

class RemotePeer final : public state::Peer {
 public:
  // `comm` must exist during every call except the destructor.
  RemotePeer(const std::shared_ptr<comm::Communicator>& comm, comm::Rank source);
  // Memory that the communicator may still write to is abandoned, not freed.
  ~RemotePeer() override;

  void ask(state::RemoteRequest request) override;
  StatusOr<Answer> answer(int64_t limit_ns) override;
  void done() override;
  // No more requests follow: the source need not wait for this rank any longer. Returns the operation that sends this
  // message; nobody needs to wait for it.
  comm::OpId leave();

 private:
  // The window, a kLook and a kBye.
  static constexpr size_t kSlots = state::kRemoteWindow + 2;
  struct Slot {
    state::RemoteRequest request;
    state::RemoteAnswer head;
    std::unique_ptr<std::byte[]> bytes;
    comm::OpId sent = 0;
    comm::OpId head_came = 0;
    comm::OpId bytes_came = 0;
  };
  void send(Slot& slot);
  void forget(Slot& slot);

  comm::Communicator& comm_;
  const std::weak_ptr<comm::Communicator> alive_;
  const comm::Rank source_;
  // On the heap, so that it can be abandoned.
  std::unique_ptr<std::array<Slot, kSlots>> slots_;
  uint64_t asked_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace keepstep::rank
