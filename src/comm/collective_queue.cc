#include "comm/collective_queue.h"

#include <algorithm>
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

void CollectiveQueue::push(OpId op, std::function<void()> job) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({op, std::move(job)});
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
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    job.run();
  }
  lock.lock();
  running_ = false;
}

bool CollectiveQueue::queued(OpId op) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [op](const Job& job) { return job.op == op; });
}

void CollectiveQueue::help(OpId op) {
  bool wake = false;
  {
    std::unique_lock lock(mutex_);
    while (!running_ && queued(op)) {
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
