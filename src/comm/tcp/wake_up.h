// Wakes a thread that sleeps in poll().
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"

namespace keepstep::comm::tcp {

class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    KEEPSTEP_CHECK(fd_.valid(), "no descriptor for an eventfd; raise the limit on open files with `ulimit -n`");
  }

  // Any thread; call it after storing what the sleeper is to see.
  void ring() {
    if (!rung_.exchange(true, std::memory_order_seq_cst)) {
      (void)eventfd_write(fd_.get(), 1);
    }
  }

  // Called by the sleeping thread.
  int fd() const { return fd_.get(); }
  // Called before it looks for work: a ring after this wakes it again.
  void begin_round() { rung_.store(false, std::memory_order_seq_cst); }
  // Sleeps until one of `fds` is ready (ours must be the first), or until monotonic time `until_ns`, less than a second
  // from now.
  void sleep(std::vector<pollfd>& fds, int64_t until_ns) {
    const timespec timeout{0, static_cast<long>(std::max<int64_t>(0, until_ns - monotonic_ns()))};
    ppoll(fds.data(), fds.size(), &timeout, nullptr);
    if (fds[0].revents != 0) {
      eventfd_t count = 0;
      (void)eventfd_read(fd_.get(), &count);
    }
  }

 private:
  const Fd fd_;
  std::atomic<bool> rung_ = false;
};

}  // namespace keepstep::comm::tcp
