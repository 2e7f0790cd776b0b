// How long a call may wait, as a point on the monotonic clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace keepstep::net {

class Deadline {
 public:
  static Deadline after(std::chrono::nanoseconds time) { return Deadline(Clock::now() + time); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return Clock::now() >= at_; }
  // For poll(): the milliseconds left, rounded up; -1: no limit.
  int poll_ms() const {
    if (at_ == Clock::time_point::max()) {
      return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
  }
  auto operator<=>(const Deadline&) const = default;

 private:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace keepstep::net
