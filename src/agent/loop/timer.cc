#include "agent/loop/timer.h"

#include <sys/timerfd.h>

#include <algorithm>

namespace keepstep::agent {

StatusOr<std::unique_ptr<Timer>> Timer::after(EventLoop& loop, std::chrono::nanoseconds delay,
                                              std::function<void()> task) {
  Fd fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const int64_t ns = std::max<int64_t>(delay.count(), 1);  // 0 would disarm it
  const itimerspec when{.it_interval = {}, .it_value = {ns / 1'000'000'000, ns % 1'000'000'000}};
  if (!fd.valid() || timerfd_settime(fd.get(), 0, &when, nullptr) != 0) {
    return errno_status("set a timer (raise the limit on open files with `ulimit -n`?)");
  }
  std::unique_ptr<Timer> timer(new Timer(loop, std::move(fd)));
  KEEPSTEP_RETURN_IF_ERROR(loop.watch(timer->fd_.get(), [raw = timer.get(), task = std::move(task)] {
    raw->loop_.unwatch(raw->fd_.get());
    task();  // last, because it may destroy the timer
  }));
  return timer;
}

Timer::~Timer() { loop_.unwatch(fd_.get()); }

}  // namespace keepstep::agent
