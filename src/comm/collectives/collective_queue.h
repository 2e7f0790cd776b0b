// Carries out collectives: those of one group sequentially in the order of the calls, those of different groups
// concurrently. So ranks may call collectives of different groups in different orders, from different threads.
//
// There is a lane per group place (layout.h), each with its own background thread. A caller that waits for an operation
// helps: its own thread runs what is queued in that lane, up to that operation, which saves two thread switches. One
// thread at a time works on a lane.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace keepstep::comm {

class CollectiveQueue {
 public:
  CollectiveQueue() = default;
  // Carries out what is still queued.
  ~CollectiveQueue();

  // `job` runs after all earlier jobs of `lane`. The first call starts the lane's thread, which lives as long as this
  // object. `op`: the operation that the job carries out; 0: none.
  void push(uint32_t lane, OpId op, std::function<void()> job);
  // Runs queued jobs of the lane of `op` on this thread, while no other thread does, up to that of `op`; never a job
  // that `op` need not wait for.
  void help(OpId op);

 private:
  struct Job {
    OpId op;
    std::function<void()> run;
  };
  struct Lane {
    std::deque<Job> jobs;
    std::condition_variable work;
    std::thread thread;
    bool running = false;  // a thread is running a job
    bool holds(OpId op) const;
  };
  void loop(Lane& lane);
  static void run_first(Lane& lane, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::map<uint32_t, Lane> lanes_;
  bool stop_ = false;
};

}  // namespace keepstep::comm
