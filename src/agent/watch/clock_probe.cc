#include "agent/watch/clock_probe.h"

#include <cstdlib>

namespace keepstep::agent {

bool ClockOffset::beyond(int64_t limit_ns) const { return std::abs(offset_ns) - round_trip_ns / 2 > limit_ns; }

void ClockProbe::begin() {
  waits_ = false;
  answers_ = 0;
  unanswered_ = 0;
}

uint64_t ClockProbe::ask(int64_t wall_ns, int64_t monotonic_ns) {
  waits_ = true;
  ++unanswered_;
  asked_wall_ns_ = wall_ns;
  asked_ns_ = monotonic_ns;
  return ++number_;
}

bool ClockProbe::answered(uint64_t number, int64_t their_wall_ns, int64_t monotonic_ns) {
  if (!waits_ || number != number_) {
    return false;
  }
  waits_ = false;
  unanswered_ = 0;
  // By the monotonic clock: somebody may set the wall clock meanwhile.
  const int64_t round_trip_ns = monotonic_ns - asked_ns_;
  if (answers_++ == 0 || round_trip_ns < best_.round_trip_ns) {
    best_ = {asked_wall_ns_ + round_trip_ns / 2 - their_wall_ns, round_trip_ns};
  }
  return true;
}

std::optional<ClockOffset> ClockProbe::result() const {
  return answers_ < kExchanges ? std::nullopt : std::optional(best_);
}

}  // namespace keepstep::agent
