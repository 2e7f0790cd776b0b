// The link to a source on this node, over its region. Internal to src/state.
#pragma once

#include "state/link.h"

namespace keepstep::state {

class SharedLink final : public Link {
 public:
  // `relay`: for targets on other nodes, over the channel that no other target takes.
  SharedLink(std::byte* region, uint32_t self, const std::atomic<uint32_t>* interrupted, bool relay = false)
      : Link(interrupted), board_(board_at(region)), self_(self), relay_(relay) {}
  ~SharedLink() override { drop_channel(); }

  bool is_near() const override { return true; }
  StatusOr<bool> look(brain::Identity identity) override;
  void nap_until_published() override;
  Status take_channel() override;
  bool has_channel() const { return channel_ != nullptr; }
  void give_back() override { drop_channel(); }
  bool can_ask() const override { return has_channel() && asked_ - taken_ < kSlots; }
  void ask(const Request& request, brain::Version version) override;
  StatusOr<Reply> reply() override;
  // The reply's bytes may be used until the kSlots-th request after its own is sent.
  void done() override { ++taken_; }

 private:
  void drop_channel();
  Status check_still_there() const;
  Status wait_answered(uint32_t number);
  uint64_t owner_word() const { return uint64_t{published_.edition} << 32 | self_; }

  Board& board_;
  const uint32_t self_;
  const bool relay_;
  brain::Identity identity_;
  uint32_t edition_looked_at_ = 0;
  Channel* channel_ = nullptr;
  uint32_t channel_index_ = 0;
  uint32_t asked_ = 0;   // number of the newest request
  uint32_t taken_ = 0;   // number of the newest reply consumed
  bool silent_ = false;  // it did not answer in time: do not wait for it again
  Request outstanding_[kSlots];
};

}  // namespace keepstep::state
