// A thread that makes shared memory, and gives it back: both take the kernel seconds for tens of gigabytes, in which
// the agent's loop would seal nothing.
//
// One piece after the other, in the order of the calls. All methods: the loop's thread only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "agent/loop/event_loop.h"
#include "base/shared_memory.h"
#include "base/status.h"

namespace keepstep::agent {

class MemoryThread {
 public:
  using Made = std::function<void(StatusOr<SharedMemory>)>;

  explicit MemoryThread(std::shared_ptr<EventLoop> loop) : loop_(std::move(loop)) {}
  // Gives up what is being made, within a chunk of it; what was not `made` yet never is.
  ~MemoryThread();

  // `made` is called once, later, by the loop, with what SharedMemory::create() returned.
  void make(std::string label, size_t bytes, Made made);
  void discard(SharedMemory memory);

 private:
  void push(std::function<void()> task);
  void run();

  std::shared_ptr<EventLoop> loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<bool> stop_{false};
  std::thread thread_;                                          // from the first task on
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the thread posted
};

}  // namespace keepstep::agent
