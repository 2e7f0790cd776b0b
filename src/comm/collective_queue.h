// Carries out collectives one after the other, in the order of the calls.
//
// A thread of its own does that in the background; a caller who waits for an operation helps: it carries out what is
// queued up to there on its own thread, which spares two switches between threads. One thread at a time is at it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace keepstep::comm {

class CollectiveQueue {
 public:
  CollectiveQueue() = default;
  // Carries out what is queued.
  ~CollectiveQueue();

  // `job` runs after all jobs pushed before. Starts the thread at the first call. `op`: whose job it is; 0: nobody's.
  void push(OpId op, std::function<void()> job);
  // Runs queued jobs here, while no other thread does, up to that of `op`. Never one that `op` need not wait for.
  void help(OpId op);

 private:
  struct Job {
    OpId op;
    std::function<void()> run;
  };
  void loop();
  bool queued(OpId op) const;  // under mutex_
  void run_first(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Job> jobs_;
  std::thread thread_;
  bool running_ = false;  // some thread runs a job
  bool stop_ = false;
};

}  // namespace keepstep::comm
