// The agent's single thread: it serves file descriptors (epoll) and functions posted by other threads, one at a time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep::agent {

class EventLoop {
 public:
  static StatusOr<std::unique_ptr<EventLoop>> create();
  ~EventLoop();

  // Any thread. Runs `task` on the loop's thread; dropped if the loop has stopped.
  void post(std::function<void()> task);

  // All methods below: the loop's thread only (or before run()).
  // Calls `on_readable` whenever `fd` can be read or was hung up. The fd stays the caller's; unwatch it before closing
  // it.
  Status watch(int fd, std::function<void()> on_readable);
  void unwatch(int fd);
  // Calls `task` about every `period`. There is at most one such task.
  void every(std::chrono::milliseconds period, std::function<void()> task);
  void run();  // until stop()
  void stop() { running_ = false; }

 private:
  EventLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void run_posted();

  Fd epoll_;
  Fd wake_;
  struct Handler {
    uint32_t serial;  // distinguishes it from an earlier handler of the descriptor, whose event may still be pending
    std::shared_ptr<std::function<void()>> call;
  };
  std::map<int, Handler> handlers_;
  uint32_t serials_ = 0;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::chrono::milliseconds period_{1000};
  std::function<void()> periodic_;
  bool running_ = true;
};

}  // namespace keepstep::agent
