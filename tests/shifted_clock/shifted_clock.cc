// For LD_PRELOAD: the wall clock of this process is SHIFT_S seconds ahead of the machine's; its other clocks are right.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) {
    const char* shift = std::getenv("SHIFT_S");
    now->tv_sec += shift == nullptr ? 0 : std::atol(shift);
  }
  return static_cast<int>(result);
}
