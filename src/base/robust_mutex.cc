#include "base/robust_mutex.h"

#include <cerrno>

namespace keepstep {

bool RobustMutex::init() {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes) != 0) {
    return false;
  }
  const bool ok = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                  pthread_mutex_init(&mutex, &attributes) == 0;
  pthread_mutexattr_destroy(&attributes);
  return ok;
}

RobustMutex::LockResult RobustMutex::lock() {
  switch (pthread_mutex_lock(&mutex)) {
    case 0:
      return LockResult::kHeld;
    case EOWNERDEAD:
      return LockResult::kOwnerDied;
    default:
      return LockResult::kFailed;
  }
}

void RobustMutex::unlock() { pthread_mutex_unlock(&mutex); }

void RobustMutex::release_after(LockResult result) {
  if (result == LockResult::kOwnerDied) {
    pthread_mutex_consistent(&mutex);
  }
  if (result != LockResult::kFailed) {
    pthread_mutex_unlock(&mutex);
  }
}

}  // namespace keepstep
