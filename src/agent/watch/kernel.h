// What a job needs of the kernel, tried out: a seccomp profile of a container, gVisor or an old kernel may refuse some
// of it, and then no job runs, whatever the versions say.
//
// Forks; call it before any thread starts. Some milliseconds. What it makes is gone when it returns.
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
