#include "comm/wait_clock.h"

#include <algorithm>

namespace keepstep::comm {

void WaitClock::handed_in(OpId op, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  last_ = {.op = op, .from_ns = now_ns};
}

void WaitClock::watched(OpId op) {
  const std::lock_guard lock(mutex_);
  if (op == last_.op) {
    last_.watched = true;
  }
}

void WaitClock::over(OpId op, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (op == last_.op) {
    last_.over_ns = now_ns;
  }
}

void WaitClock::begin(OpId op, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (waiting_++ > 0) {
    return;
  }
  since_ns_ = now_ns;
  if (last_.watched && op != last_.op && last_.over_ns != 0) {
    total_ns_ += last_.over_ns - last_.from_ns;
  }
  last_ = {};
}

void WaitClock::end(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (--waiting_ == 0) {
    total_ns_ += std::max<int64_t>(now_ns - since_ns_, 0);
  }
}

int64_t WaitClock::total_ns() const {
  const std::lock_guard lock(mutex_);
  return total_ns_;
}

}  // namespace keepstep::comm
