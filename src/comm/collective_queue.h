// Carries out collectives one after the other, in the order of the calls.
//
// A thread of its own does that in the background; a caller who waits for an operation helps (`help`): it carries out
// what is queued on its own thread, which spares two switches between threads. One thread at a time is at it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace keepstep::comm {

class CollectiveQueue {
 public:
  CollectiveQueue() = default;
  // Carries out what is queued.
  ~CollectiveQueue();

  // `job` runs after all jobs pushed before. Starts the thread at the first call.
  void push(std::function<void()> job);
  // Runs queued jobs here while no other thread does, until `enough()`.
  void help(const std::function<bool()>& enough);

 private:
  void loop();
  void run_first(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
  bool running_ = false;  // some thread runs a job
  bool stop_ = false;
};

}  // namespace keepstep::comm
