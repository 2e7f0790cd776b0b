// Calls a function once after a delay, on an event loop. For time limits, and for faults that end by themselves.
//
// Loop thread only. Destroying the timer cancels it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "agent/loop/event_loop.h"
#include "base/fd.h"
#include "base/status.h"

namespace keepstep::agent {

class Timer {
 public:
  // Calls `task` once, `delay` from now (0: at the loop's next turn). The loop must outlive the timer. `task` may
  // destroy the timer.
  static StatusOr<std::unique_ptr<Timer>> after(EventLoop& loop, std::chrono::nanoseconds delay,
                                                std::function<void()> task);
  ~Timer();

 private:
  Timer(EventLoop& loop, Fd fd) : loop_(loop), fd_(std::move(fd)) {}

  EventLoop& loop_;
  Fd fd_;
};

}  // namespace keepstep::agent
