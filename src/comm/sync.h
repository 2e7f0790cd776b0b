// Waiting for other ranks: bells (a futex that costs little when nobody sleeps) and the numbered barriers of a group.
//
// A wait spins for at most 20 us, less if spinning did not help lately (there may be more ranks than cores), then
// sleeps. It checks again every 50 ms, so a lost wake-up costs time but never the job.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "comm/layout.h"

namespace keepstep::comm {

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMaxSpinNs = 20'000;
inline constexpr int64_t kLeastSpinNs = 500;
inline constexpr int64_t kLookAgainNs = 50'000'000;

// The deadline `timeout_ns` from now (< 0: never).
int64_t deadline_after(int64_t timeout_ns);

// Wakes the sleepers on `bell`, if any. What they wait for must already have been stored with seq_cst.
void ring(Bell& bell);

// Sleeps until `done()`, a ring or `timeout_ns`; the caller checks again in a loop. `done` must load with seq_cst.
template <class Done>
void sleep_on(Bell& bell, int64_t timeout_ns, Done done) {
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = bell.ring.load(std::memory_order_seq_cst);
  if (!done()) {
    futex_wait(bell.ring, seen, timeout_ns);
  }
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// Spins as long as that is worthwhile; adapts to whether it helped. One thread at a time.
class Spin {
 public:
  template <class Done>
  bool until(Done done) {
    const int64_t end = monotonic_ns() + budget_ns_;
    do {
      for (int i = 0; i < 32; ++i) {
        if (done()) {
          budget_ns_ = std::min(budget_ns_ * 2, kMaxSpinNs);
          return true;
        }
        cpu_relax();
      }
    } while (monotonic_ns() < end);
    budget_ns_ = std::max(budget_ns_ / 2, kLeastSpinNs);
    return false;
  }

 private:
  int64_t budget_ns_ = kMaxSpinNs;
};

enum class Meeting { kAll, kInterrupted, kTimedOut, kGivenUp };

// The barriers of one group, as seen by one member. One thread at a time.
class GroupSync {
 public:
  GroupSync(GroupBlock& block, RankLine* lines, size_t members, size_t self, const std::atomic<uint32_t>& interrupted)
      : block_(block), lines_(lines), members_(members), self_(self), interrupted_(interrupted) {}

  // Publishes the next phase, with everything written before, and waits until all members have published it. After
  // kAll, everything they wrote before is visible. After any other result the group is unusable in this generation.
  Meeting meet(const Descriptor& descriptor, int64_t deadline_ns);

  // Ends the group for all members: they see kGivenUp instead of waiting for us.
  void give_up(GivenUp who);
  const std::atomic<uint64_t>& given_up_word() const { return block_.given_up_by; }  // non-zero: ended
  GivenUp given_up() const { return GivenUp::from(block_.given_up_by.load(std::memory_order_acquire)); }

  uint64_t phase() const { return phase_; }  // the last one published
  const Descriptor& descriptor(size_t member) const { return lines_[member].descriptors[phase_ & 1]; }
  std::vector<size_t> missing() const;  // members that have not published it yet
  bool interrupted() const { return interrupted_.load(std::memory_order_seq_cst) != 0; }

 private:
  bool all_here();

  GroupBlock& block_;
  RankLine* lines_;
  size_t members_;
  size_t self_;
  const std::atomic<uint32_t>& interrupted_;
  uint64_t phase_ = 0;
  size_t known_here_ = 0;  // members below this index have published phase_
  Spin spin_;
};

}  // namespace keepstep::comm
