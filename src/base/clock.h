// The only clocks: CLOCK_MONOTONIC, which all processes on a machine share, and wall-clock time for people.
#pragma once

#include <cstdint>
#include <ctime>

namespace keepstep {

// CLOCK_MONOTONIC in nanoseconds; comparable between processes on one machine.
inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Seconds since the epoch, for log lines and journals only.
inline double wall_seconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace keepstep
