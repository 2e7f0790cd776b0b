#include "comm/collective_queue.h"

#include <utility>

#include "comm/engine_thread.h"

namespace keepstep::comm {

CollectiveQueue::~CollectiveQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CollectiveQueue::push(std::function<void()> job) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!thread_.joinable()) {
      thread_ = start_engine_thread("ks-collectives", [this] { loop(); });
    } else {
      wake = !running_;  // who runs a job looks for the next one itself
    }
  }
  if (wake) {
    work_.notify_one();
  }
}

void CollectiveQueue::run_first(std::unique_lock<std::mutex>& lock) {
  {
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    job();
  }
  lock.lock();
  running_ = false;
}

void CollectiveQueue::help(const std::function<bool()>& enough) {
  bool wake = false;
  {
    std::unique_lock lock(mutex_);
    while (!running_ && !jobs_.empty() && !enough()) {
      run_first(lock);
    }
    wake = !running_ && (!jobs_.empty() || stop_);
  }
  if (wake) {
    work_.notify_one();
  }
}

void CollectiveQueue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return !running_ && (stop_ || !jobs_.empty()); });
    if (jobs_.empty()) {
      return;
    }
    run_first(lock);
  }
}

}  // namespace keepstep::comm
