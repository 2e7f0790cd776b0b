#include "agent/watch/kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

namespace keepstep::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// From now on system call `number` fails with EPERM in this process, as under a container's seccomp profile.
bool forbid(uint32_t number) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// The problems that try_kernel() finds in a process that may not call `number`: "NEED: PROBLEM" lines.
std::string complaints_without(uint32_t number) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string said = forbid(number) ? "" : "seccomp does not work here";
    for (const KernelFinding& finding : try_kernel()) {
      said += finding.problem.empty() ? "" : finding.need + ": " + finding.problem + "\n";
    }
    _exit(write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return said;
}

TEST(Kernel, that_runs_these_tests_has_all_that_a_job_needs) {
  for (const KernelFinding& finding : try_kernel()) {
    EXPECT_THAT(finding.problem, IsEmpty()) << finding.need;
  }
}

TEST(Kernel, a_call_that_a_container_forbids_is_named) {
  EXPECT_THAT(complaints_without(SYS_memfd_create), HasSubstr("shared memory (memfd_create, fallocate, seals): "));
  EXPECT_EQ(complaints_without(SYS_pidfd_open),
            "process descriptors (pidfd_open, pidfd_send_signal, waitid): pidfd_open: Operation not permitted\n");
  EXPECT_EQ(
      complaints_without(SYS_pidfd_send_signal),
      "process descriptors (pidfd_open, pidfd_send_signal, waitid): pidfd_send_signal: Operation not permitted\n");
  EXPECT_THAT(complaints_without(SYS_timerfd_create), HasSubstr("event loop (epoll, eventfd, timerfd, signalfd): "));
  EXPECT_THAT(complaints_without(SYS_signalfd4), HasSubstr("signalfd: Operation not permitted"));
  EXPECT_EQ(
      complaints_without(SYS_set_robust_list),
      "notice of a process's death (robust mutex, futex): the kernel does not report that the owner died (Device or "
      "resource busy)\n");
}

}  // namespace
}  // namespace keepstep::agent
