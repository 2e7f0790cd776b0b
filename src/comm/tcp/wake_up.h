// Wakes a thread that sleeps in poll().
#pragma once

#include <sys/eventfd.h>

#include <atomic>

#include "base/check.h"
#include "base/fd.h"

namespace keepstep::comm::tcp {

class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    KEEPSTEP_CHECK(fd_.valid(), "no descriptor for an eventfd; raise the limit on open files with `ulimit -n`");
  }

  // From any thread, after what there is to see was stored.
  void ring() {
    if (!rung_.exchange(true, std::memory_order_seq_cst)) {
      (void)eventfd_write(fd_.get(), 1);
    }
  }

  // By the thread itself.
  int fd() const { return fd_.get(); }
  // Before it looks for what there is to do: whoever rings from now on wakes it again.
  void begin_round() { rung_.store(false, std::memory_order_seq_cst); }
  // After poll() found it readable.
  void clear() {
    eventfd_t count = 0;
    (void)eventfd_read(fd_.get(), &count);
  }

 private:
  const Fd fd_;
  std::atomic<bool> rung_ = false;
};

}  // namespace keepstep::comm::tcp
