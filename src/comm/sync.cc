#include "comm/sync.h"

namespace keepstep::comm {

int64_t deadline_after(int64_t timeout_ns) {
  const int64_t now = monotonic_ns();
  return timeout_ns < 0 || timeout_ns > kNoDeadline - now ? kNoDeadline : now + timeout_ns;
}

void ring(Bell& bell) {
  // Either this load sees the sleeper, or the sleeper checks its condition only after our store has made it true.
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) {
    bell.ring.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(bell.ring);
  }
}

bool GroupSync::all_here() {
  while (known_here_ < members_ && lines_[known_here_].phase.load(std::memory_order_seq_cst) >= phase_) {
    ++known_here_;
  }
  return known_here_ == members_;
}

Meeting GroupSync::meet(const Descriptor& descriptor, int64_t deadline_ns) {
  if (interrupted()) {
    return Meeting::kInterrupted;
  }
  if (block_.given_up_by.load(std::memory_order_seq_cst) != 0) {
    return Meeting::kGivenUp;  // a member that left an operation half way must not seem to enter the next
  }
  ++phase_;
  known_here_ = 0;
  lines_[self_].descriptors[phase_ & 1] = descriptor;
  lines_[self_].phase.store(phase_, std::memory_order_seq_cst);
  if (all_here()) {
    ring(block_.bell);  // of all members, at least the last to arrive gets here
  } else {
    const auto over = [this] {
      return all_here() || interrupted() || block_.given_up_by.load(std::memory_order_seq_cst) != 0;
    };
    if (!spin_.until(over)) {
      while (!over()) {
        const int64_t left_ns = deadline_ns == kNoDeadline ? kLookAgainNs : deadline_ns - monotonic_ns();
        if (left_ns <= 0) {
          return Meeting::kTimedOut;
        }
        sleep_on(block_.bell, std::min(left_ns, kLookAgainNs), over);
      }
    }
  }
  if (interrupted()) {
    return Meeting::kInterrupted;
  }
  return all_here() ? Meeting::kAll : Meeting::kGivenUp;
}

void GroupSync::give_up(GivenUp who) {
  uint64_t nobody = 0;
  block_.given_up_by.compare_exchange_strong(nobody, who.word(), std::memory_order_seq_cst);
  ring(block_.bell);
}

std::vector<size_t> GroupSync::missing() const {
  std::vector<size_t> result;
  for (size_t i = 0; i < members_; ++i) {
    if (lines_[i].phase.load(std::memory_order_acquire) < phase_) {
      result.push_back(i);
    }
  }
  return result;
}

}  // namespace keepstep::comm
