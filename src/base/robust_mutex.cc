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

RobustMutex::Outcome RobustMutex::lock() {
  switch (pthread_mutex_lock(&mutex)) {
    case 0:
      return Outcome::kHeld;
    case EOWNERDEAD:
      return Outcome::kOwnerDied;
    default:
      return Outcome::kFailed;
  }
}

void RobustMutex::unlock() { pthread_mutex_unlock(&mutex); }

void RobustMutex::release_after(Outcome outcome) {
  if (outcome == Outcome::kOwnerDied) {
    pthread_mutex_consistent(&mutex);
  }
  if (outcome != Outcome::kFailed) {
    pthread_mutex_unlock(&mutex);
  }
}

}  // namespace keepstep
