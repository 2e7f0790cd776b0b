// One target's side of one source's region: finds out what is published, takes a channel, asks ahead, gives the channel
// back. Internal to src/state. One thread uses a Link at a time.
//
// Statuses: ABORTED when interrupted; UNAVAILABLE when this source is of no use any more, with the reason (withdrawn,
// refused, silent, a newer identity); the caller then goes on with other sources.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "brain/types.h"
#include "state/channel.h"

namespace keepstep::state {

// What the header said when the identity we look for was found.
struct Published {
  uint32_t edition = 0;
  brain::Version version = 0;
  uint64_t manifest_bytes = 0;
  uint64_t entries = 0;
  uint64_t total_bytes = 0;
  uint64_t sizes_checksum = 0;
};

struct Reply {
  const std::byte* bytes = nullptr;  // in the shared slot: another process may still write there
  uint64_t checksum = 0;             // over the source's own bytes
};

class Link {
 public:
  Link(std::byte* region, uint32_t self, const std::atomic<uint32_t>* interrupted)
      : board_(board_at(region)), self_(self), interrupted_(interrupted) {}
  ~Link() { give_back(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // False: not published yet. UNAVAILABLE: never will be (a newer identity, another layout of the region).
  StatusOr<bool> look(brain::Identity identity);
  // Sleeps until the source publishes or withdraws something after the last look(), at most kNapNs.
  void nap_until_published() const;

  // After look() gave true: takes a channel, waiting for one as long as the source is there.
  Status take_channel();
  bool has_channel() const { return channel_ != nullptr; }
  // Waits for what is still outstanding, then lets the next target have the channel.
  void give_back();

  bool can_ask() const { return has_channel() && asked_ - taken_ < kSlots; }
  void ask(const Request& request, brain::Version version);
  // The reply to the oldest request. Its bytes stay until done(). DATA_LOSS when the reply is to something else than
  // was asked: worth asking again.
  StatusOr<Reply> reply();
  void done() { ++taken_; }

  const Published& published() const { return published_; }
  bool is_interrupted() const { return interrupted_ != nullptr && interrupted_->load(std::memory_order_acquire) != 0; }

 private:
  Status check_still_there() const;
  Status wait_answered(uint32_t number);
  uint64_t owner_word() const { return uint64_t{published_.edition} << 32 | self_; }

  Board& board_;
  const uint32_t self_;
  const std::atomic<uint32_t>* const interrupted_;
  brain::Identity identity_;
  Published published_;
  uint32_t edition_looked_at_ = 0;
  Channel* channel_ = nullptr;
  uint32_t channel_index_ = 0;
  uint32_t asked_ = 0;   // number of the newest request
  uint32_t taken_ = 0;   // number of the newest reply consumed
  bool silent_ = false;  // it did not answer in time: do not wait for it again
  Request outstanding_[kSlots];
};

}  // namespace keepstep::state
