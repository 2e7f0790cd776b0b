// Faults that an agent carries out on itself: killed, paused, disk full. They are real, by the kernel's own means.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep::agent {

// SIGKILL to this process. Does not return.
[[noreturn]] void kill_this_process();

// SIGSTOP to this process; returns once it was continued. With `seconds` a child continues it; the child is a process
// group of its own, and the caller reaps the returned pid. Without, only a SIGCONT from outside continues it.
StatusOr<std::optional<pid_t>> stop_this_process(std::optional<std::chrono::duration<double>> seconds);

// From fill() to clear(), writes to each file below `folders` that this process has open for writing fail with ENOSPC,
// as on a full file system: /dev/full takes its place. Files opened meanwhile are not affected.
class FullDisk {
 public:
  // Returns the number of affected files. FAILED_PRECONDITION: there are none, or the disk is full already.
  StatusOr<size_t> fill(const std::vector<std::string>& folders);
  void clear();
  bool full() const { return !kept_.empty(); }

 private:
  std::map<int, Fd> kept_;  // the original file of each descriptor
};

}  // namespace keepstep::agent
