#include "agent/memory/memory_thread.h"

#include <utility>

namespace keepstep::agent {

MemoryThread::~MemoryThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void MemoryThread::make(std::string label, size_t bytes, Made made) {
  push([this, label = std::move(label), bytes, made = std::move(made), alive = std::weak_ptr<bool>(alive_)] {
    // std::function needs copyable captures, and SharedMemory is not copyable.
    const auto memory =
        std::make_shared<StatusOr<SharedMemory>>(SharedMemory::create(label, bytes, [this] { return stop_.load(); }));
    loop_->post([memory, made, alive] {
      if (alive.lock() != nullptr) {
        made(std::move(*memory));
      }
    });
  });
}

void MemoryThread::discard(SharedMemory memory) {
  push([held = std::make_shared<SharedMemory>(std::move(memory))] { *held = SharedMemory(); });
}

void MemoryThread::push(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void MemoryThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) {
      return;
    }
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace keepstep::agent
