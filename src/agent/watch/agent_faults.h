// Faults that an agent carries out on itself: killed, paused, its disk full. Real ones, by the kernel's own means.
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

// SIGSTOP to this process; returns once it was continued. With `seconds` a child does that; its pid, which is a process
// group of its own, is for the caller to reap. Without, only somebody's SIGCONT ends it.
StatusOr<std::optional<pid_t>> stop_this_process(std::optional<std::chrono::duration<double>> seconds);

// From fill() to clear() each file below `folders` that this process has open for writing answers ENOSPC, as a full
// file system would: /dev/full stands in its place. Files that are opened meanwhile are not touched.
class FullDisk {
 public:
  // How many files that are now. FAILED_PRECONDITION: none, or the disk is full already.
  StatusOr<size_t> fill(const std::vector<std::string>& folders);
  void clear();
  bool full() const { return !kept_.empty(); }

 private:
  std::map<int, Fd> kept_;  // what was behind each descriptor
};

}  // namespace keepstep::agent
