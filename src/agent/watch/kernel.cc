#include "agent/watch/kernel.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <new>
#include <utility>

#include "agent/loop/event_loop.h"
#include "agent/loop/timer.h"
#include "base/fd.h"
#include "base/futex.h"
#include "base/robust_mutex.h"
#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep::agent {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr int kLimitMs = 5000;  // for something that takes microseconds

// A process that runs `body` and then waits to be killed.
class Child {
 public:
  static StatusOr<Child> start(const std::function<void()>& body) {
    const pid_t pid = fork();
    if (pid < 0) {
      return errno_status("fork a process (is the limit on processes reached?)");
    }
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      body();
      while (true) {
        pause();
      }
    }
    return Child(pid);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&&) = delete;
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ != 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }
  void was_reaped() { pid_ = 0; }

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

Status try_shared_memory() { return SharedMemory::create("keepstep-doctor", kBytes).status(); }

Status try_passing_descriptors() {
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::create("keepstep-doctor", kBytes));
  KEEPSTEP_ASSIGN_OR_RETURN(const auto ends, PacketSocket::pair());
  const int fd = memory.fd();
  KEEPSTEP_RETURN_IF_ERROR(ends.first.try_send("memory", {&fd, 1}));
  KEEPSTEP_ASSIGN_OR_RETURN(Packet packet, ends.second.receive());
  if (packet.fds.size() != 1) {
    return absl::InternalError("a descriptor was sent and none came");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory again, SharedMemory::attach(std::move(packet.fds[0]), kBytes));
  memory.data()[0] = std::byte{42};
  return again.data()[0] == std::byte{42} ? absl::OkStatus()
                                          : absl::InternalError("memory that was passed on is not shared");
}

// The first sign that a rank died.
Status try_death_notice() {
  struct Shared {
    RobustMutex mutex;
    std::atomic<uint32_t> held{0};
  };
  KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::create("keepstep-doctor", sizeof(Shared)));
  auto* shared = new (memory.data()) Shared;
  if (!shared->mutex.init()) {
    return absl::UnimplementedError("a robust mutex between processes cannot be made");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Child child, Child::start([shared] {
                              shared->held = shared->mutex.lock() == RobustMutex::LockResult::kHeld ? 1 : 2;
                              futex_wake_all(shared->held);
                            }));
  futex_wait(shared->held, 0, int64_t{kLimitMs} * 1'000'000);
  if (shared->held != 1) {
    return absl::UnimplementedError("another process cannot lock a shared mutex, or its wake-up (futex) does not come");
  }
  child.end();
  // Not RobustMutex::lock(): if the kernel does not notify us, it would wait forever.
  const int error = pthread_mutex_trylock(&shared->mutex.mutex);
  return error == EOWNERDEAD
             ? absl::OkStatus()
             : absl::UnimplementedError(absl::StrFormat("the kernel does not report that the owner died (%s)",
                                                        error == 0 ? "it is free" : strerror(error)));
}

Status try_process_descriptors() {
  KEEPSTEP_ASSIGN_OR_RETURN(Child child, Child::start([] {}));
  const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  if (!pidfd.valid()) {
    return errno_status("pidfd_open");
  }
  if (syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0) != 0) {
    return errno_status("pidfd_send_signal");
  }
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  if (poll(&ended, 1, kLimitMs) != 1) {
    return absl::UnimplementedError("poll does not tell that a process ended");
  }
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd.get()), &info, WEXITED) != 0) {
    return errno_status("waitid(P_PIDFD)");
  }
  child.was_reaped();
  return absl::OkStatus();
}

Status try_adopting() {
  int before = 0;
  if (prctl(PR_GET_CHILD_SUBREAPER, &before) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return errno_status("prctl(PR_SET_CHILD_SUBREAPER)");
  }
  prctl(PR_SET_CHILD_SUBREAPER, before);
  return absl::OkStatus();
}

Status try_event_loop() {
  sigset_t none;
  sigemptyset(&none);
  if (const Fd signals(signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK)); !signals.valid()) {
    return errno_status("signalfd");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const auto loop, EventLoop::create());
  bool fired = false;
  KEEPSTEP_ASSIGN_OR_RETURN(const auto timer, Timer::after(*loop, std::chrono::milliseconds(1), [&] {
                              fired = true;
                              loop->stop();
                            }));
  loop->every(std::chrono::milliseconds(kLimitMs), [&] { loop->stop(); });
  loop->run();
  return fired ? absl::OkStatus() : absl::UnimplementedError("a timer (timerfd) does not fire");
}

// Hang detection and the count of open files read /proc.
Status try_proc() {
  KEEPSTEP_ASSIGN_OR_RETURN(const Child child, Child::start([] {}));
  const std::string file = absl::StrFormat("/proc/%d/stat", child.pid());
  std::ifstream in(file);
  if (pid_t pid = 0; !(in >> pid) || pid != child.pid()) {
    return absl::NotFoundError(file + " cannot be read; is /proc mounted, and of this pid namespace?");
  }
  return access("/proc/self/fd", R_OK | X_OK) == 0 ? absl::OkStatus() : errno_status("/proc/self/fd");
}

}  // namespace

std::vector<KernelFinding> try_kernel() {
  const std::pair<const char*, Status (*)()> needs[] = {
      {"shared memory (memfd_create, fallocate, seals)", try_shared_memory},
      {"descriptors between processes (SOCK_SEQPACKET, SCM_RIGHTS)", try_passing_descriptors},
      {"notice of a process's death (robust mutex, futex)", try_death_notice},
      {"process descriptors (pidfd_open, pidfd_send_signal, waitid)", try_process_descriptors},
      {"adopting orphans (PR_SET_CHILD_SUBREAPER)", try_adopting},
      {"event loop (epoll, eventfd, timerfd, signalfd)", try_event_loop},
      {"/proc", try_proc},
  };
  std::vector<KernelFinding> findings;
  for (const auto& [need, tried] : needs) {
    findings.push_back({need, std::string(tried().message())});
  }
  return findings;
}

}  // namespace keepstep::agent
