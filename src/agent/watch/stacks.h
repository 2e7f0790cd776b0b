// Takes the stacks of Python processes, all at once and without blocking: with py-spy, one short-lived child per
// process.
//
// py-spy reads a process from outside, so a held GIL, an endless loop, a deadlock or SIGSTOP does not matter. It stops
// the process for some milliseconds meanwhile (ptrace), and leaves it as it was.
// Loop thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "agent/loop/event_loop.h"
#include "agent/watch/stack_text.h"
#include "base/status.h"

namespace keepstep::agent {

struct StackLimits {
  std::chrono::milliseconds time{10'000};  // for each process; after that its py-spy is killed
  size_t bytes = 8 << 20;                  // of output from one py-spy
  size_t at_once = 4;                      // children; the rest wait their turn
  bool native = false;                     // C and C++ frames too: slower, it reads debug information first. If that
                                           // takes more than half the time, only Python frames are taken
};

// Where py-spy is: $KEEPSTEP_PY_SPY, else next to `python`, else in PATH. NOT_FOUND says where it was looked for and
// how to install it.
StatusOr<std::string> find_py_spy(const std::string& python);

// Calls `done` from the loop with one entry for each of `pids`, in their order. The entry of a process that could not
// be read has an error that says why, and what to do. The loop must outlive the call; `done` is dropped if the loop
// stops first.
void take_stacks(EventLoop& loop, const std::string& py_spy, const std::vector<pid_t>& pids, const StackLimits& limits,
                 std::function<void(std::vector<ProcessStacks>)> done);

}  // namespace keepstep::agent
