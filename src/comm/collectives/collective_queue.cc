#include "comm/collectives/collective_queue.h"

#include <algorithm>
#include <utility>

#include "base/engine_thread.h"

namespace keepstep::comm {

CollectiveQueue::~CollectiveQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (auto& [place, lane] : lanes_) {
    lane.work.notify_one();
  }
  for (auto& [place, lane] : lanes_) {
    lane.thread.join();
  }
}

void CollectiveQueue::push(uint32_t place, OpId op, std::function<void()> job) {
  Lane* lane = nullptr;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    lane = &lanes_[place];
    lane->jobs.push_back({op, std::move(job)});
    if (!lane->thread.joinable()) {
      lane->thread = start_engine_thread("ks-collectives", [this, lane] { loop(*lane); });
    } else {
      wake = !lane->running;  // the thread that runs a job looks for the next one itself
    }
  }
  if (wake) {
    lane->work.notify_one();
  }
}

void CollectiveQueue::run_first(Lane& lane, std::unique_lock<std::mutex>& lock) {
  {
    const Job job = std::move(lane.jobs.front());
    lane.jobs.pop_front();
    lane.running = true;
    lock.unlock();
    job.run();
  }
  lock.lock();
  lane.running = false;
}

bool CollectiveQueue::Lane::holds(OpId op) const {
  return std::any_of(jobs.begin(), jobs.end(), [op](const Job& job) { return job.op == op; });
}

void CollectiveQueue::help(OpId op) {
  Lane* lane = nullptr;
  bool wake = false;
  {
    std::unique_lock lock(mutex_);
    const auto found = std::find_if(lanes_.begin(), lanes_.end(), [op](auto& each) { return each.second.holds(op); });
    if (found == lanes_.end()) {
      return;
    }
    lane = &found->second;
    while (!lane->running && lane->holds(op)) {
      run_first(*lane, lock);
    }
    wake = !lane->running && (!lane->jobs.empty() || stop_);
  }
  if (wake) {
    lane->work.notify_one();
  }
}

void CollectiveQueue::loop(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    lane.work.wait(lock, [&] { return !lane.running && (stop_ || !lane.jobs.empty()); });
    if (lane.jobs.empty()) {
      return;
    }
    run_first(lane, lock);
  }
}

}  // namespace keepstep::comm
