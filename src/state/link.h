// One target's connection to one source: finds out what is published, asks ahead, receives replies. Internal to
// src/state, and the seam between sources on this node (shared_link.h) and on others (remote_link.h). One thread uses a
// Link at a time.
//
// Statuses: ABORTED if interrupted; UNAVAILABLE if this source is no longer usable, with the reason (withdrawn,
// refused, silent, a newer identity); the caller then continues with other sources.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "brain/types.h"
#include "state/channel.h"

namespace keepstep::state {

// What the source had published when look() found the wanted identity.
struct Published {
  uint32_t edition = 0;
  brain::Version version = 0;
  uint64_t manifest_bytes = 0;
  uint64_t entries = 0;
  uint64_t total_bytes = 0;
  uint64_t sizes_checksum = 0;
};

struct Reply {
  const std::byte* bytes = nullptr;  // of a source on this node: in the shared slot, where others may still write
  uint64_t checksum = 0;             // over the source's own bytes
};

class Link {
 public:
  explicit Link(const std::atomic<uint32_t>* interrupted) : interrupted_(interrupted) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Whether the source is on this node; near sources are asked first.
  virtual bool is_near() const = 0;
  // False: not published yet. UNAVAILABLE: it never will be (a newer identity, another layout of the region).
  virtual StatusOr<bool> look(brain::Identity identity) = 0;
  // Sleeps until the source publishes or withdraws something after the last look(), at most kNapNs.
  virtual void nap_until_published() = 0;

  // After look() returned true: takes a channel; waits for one as long as the source is there.
  virtual Status take_channel() = 0;
  // Waits for outstanding replies, then gives the channel back for the next target.
  virtual void give_back() = 0;

  virtual bool can_ask() const = 0;
  virtual void ask(const Request& request, brain::Version version) = 0;
  // The reply to the oldest request. Its bytes are valid until done(). DATA_LOSS if the reply is to something other
  // than the request: ask again.
  virtual StatusOr<Reply> reply() = 0;
  virtual void done() = 0;

  const std::atomic<uint32_t>* interrupted_word() const { return interrupted_; }
  const Published& published() const { return published_; }
  bool is_interrupted() const { return interrupted_ != nullptr && interrupted_->load(std::memory_order_acquire) != 0; }

 protected:
  const std::atomic<uint32_t>* const interrupted_;
  Published published_;
};

}  // namespace keepstep::state
