// A robust, process-shared mutex as a death notice (pthread_mutexattr_setrobust(3)).
//
// One thread of a worker holds it for as long as the worker lives. When the kernel ends that thread, however large
// the process is, waiters get EOWNERDEAD within a fraction of a millisecond: long before a pidfd or a closed socket
// tells, because those wait until the memory is torn down.
#pragma once

#include <pthread.h>

namespace keepstep {

struct RobustMutex {
  enum class Outcome { kHeld, kOwnerDied, kFailed };

  // Once, by the owner of the memory, before anyone else maps it.
  bool init();
  // By the thread whose life is watched. kHeld on success.
  Outcome lock();
  // By the same thread, at a clean end: watchers then see kHeld, not kOwnerDied.
  void unlock();
  // By a watcher that got the mutex: hands it back so that others may watch too.
  void release_after(Outcome outcome);

  pthread_mutex_t mutex;
};

}  // namespace keepstep
