// A thread that allocates and frees shared memory. For tens of gigabytes either takes the kernel seconds, during which
// the agent's loop could not seal anything.
//
// One request at a time, in the order of the calls. All methods: the loop's thread only.
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
  // Stops the allocation in progress after at most one more chunk. `made` is not called for requests still open.
  ~MemoryThread();

  // The loop later calls `made` once with the result of SharedMemory::create().
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
  std::thread thread_;                                          // starts with the first task
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for tasks that the thread posted
};

}  // namespace keepstep::agent
