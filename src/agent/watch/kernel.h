// Tries out what a job needs from the kernel. A container's seccomp profile, gVisor or an old kernel may refuse some of
// it, and then no job runs, whatever the versions are.
//
// Forks, so call it before any thread starts. Takes some milliseconds, and leaves nothing behind.
#pragma once

#include <string>
#include <vector>

namespace keepstep::agent {

struct KernelFinding {
  std::string need;     // "process descriptors (pidfd_open, ...)"
  std::string problem;  // empty: it works
};

// All needs, in a fixed order.
std::vector<KernelFinding> try_kernel();

}  // namespace keepstep::agent
