// An engine thread inside a host program: named, with all signals blocked, because they belong to the host's main
// thread.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace keepstep {

// `name`: at most 15 characters; top -H and debuggers show it.
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
