// A thread of the engine inside a host program: named, and deaf to signals, which belong to the host's main thread.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace keepstep {

// `name` has at most 15 characters; shown by top -H and debuggers.
template <class Body>
std::thread start_engine_thread(const char* name, Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace keepstep
