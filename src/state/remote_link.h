// The link to a source on another node: the protocol of shared memory, as messages to a Relay there.
#pragma once

#include <deque>

#include "state/channel.h"
#include "state/link.h"
#include "state/peer.h"

namespace keepstep::state {

class RemoteLink final : public Link {
 public:
  // `silence_ns`: a source that does not answer for this long is lost.
  RemoteLink(Peer& peer, const std::atomic<uint32_t>* interrupted, int64_t silence_ns = kSilenceNs)
      : Link(interrupted), peer_(peer), silence_ns_(silence_ns) {}
  ~RemoteLink() override { await_all(); }

  bool is_near() const override { return false; }
  StatusOr<bool> look(brain::Identity identity) override;
  void nap_until_published() override;
  Status take_channel() override;
  void give_back() override { await_all(); }
  bool can_ask() const override { return outstanding_.size() < kRemoteWindow; }
  void ask(const Request& request, brain::Version version) override;
  StatusOr<Reply> reply() override;
  void done() override;

 private:
  void await_all();
  Status lose(std::string why);
  // Waits in naps, so that it sees an interruption even where the line does not report it.
  StatusOr<Peer::Answer> wait_answer();

  Peer& peer_;
  const int64_t silence_ns_;
  brain::Identity identity_;
  std::deque<Request> outstanding_;
};

}  // namespace keepstep::state
