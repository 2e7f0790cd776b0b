// A robust, process-shared mutex as a death notice (pthread_mutexattr_setrobust(3)).
//
// One thread of a worker holds it for as long as the worker lives. When the kernel ends that thread, however large
// the process is, waiters get EOWNERDEAD within a fraction of a millisecond: long before a pidfd or a closed socket
// reports the death, because those wait until the memory is torn down.
#pragma once

#include <pthread.h>

namespace keepstep {

struct RobustMutex {
  enum class LockResult { kHeld, kOwnerDied, kFailed };

  // Call once, by the owner of the memory, before anyone else maps it.
  bool init();
  // Called by the watched thread. kHeld on success.
  LockResult lock();
  // Called by the same thread at a clean exit: watchers then see kHeld, not kOwnerDied.
  void unlock();
  // Called by a watcher that got the mutex: passes it on so that other watchers get it too.
  void release_after(LockResult result);

  pthread_mutex_t mutex;
};

}  // namespace keepstep
