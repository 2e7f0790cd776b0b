#include "agent/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"

namespace keepstep::agent {

StatusOr<std::unique_ptr<EventLoop>> EventLoop::create() {
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) {
    return errno_status("create the agent's event loop (raise the limit on open files with `ulimit -n`?)");
  }
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(wake)));
  EventLoop* raw = loop.get();
  KEEPSTEP_RETURN_IF_ERROR(loop->watch(loop->wake_.get(), [raw] {
    uint64_t count;
    (void)!read(raw->wake_.get(), &count, sizeof count);
    raw->run_posted();
  }));
  return loop;
}

EventLoop::~EventLoop() {
  // Objects that tasks own may unwatch descriptors when destroyed; by then there are no handlers left.
  decltype(posted_) posted;
  posted.swap(posted_);
  decltype(handlers_) handlers;
  handlers.swap(handlers_);
}

void EventLoop::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  posted_.push_back(std::move(task));
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_posted() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (auto& task : tasks) {
    task();
  }
}

namespace {

uint64_t pack(int fd, uint32_t serial) { return uint64_t{serial} << 32 | static_cast<uint32_t>(fd); }

}  // namespace

Status EventLoop::watch(int fd, std::function<void()> on_readable) {
  epoll_event event{};
  event.events = EPOLLIN;
  const uint32_t serial = ++serials_;
  event.data.u64 = pack(fd, serial);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errno_status("watch a descriptor");
  }
  handlers_[fd] = {serial, std::make_shared<std::function<void()>>(std::move(on_readable))};
  return absl::OkStatus();
}

void EventLoop::unwatch(int fd) {
  if (handlers_.erase(fd) != 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void EventLoop::every(std::chrono::milliseconds period, std::function<void()> task) {
  period_ = period;
  periodic_ = std::move(task);
}

void EventLoop::run() {
  const int64_t period_ns = std::chrono::nanoseconds(period_).count();
  int64_t next_ns = monotonic_ns() + period_ns;
  while (running_) {
    epoll_event events[32];
    const int64_t wait_ms = std::max<int64_t>(0, (next_ns - monotonic_ns()) / 1'000'000 + 1);
    const int count = epoll_wait(epoll_.get(), events, 32, static_cast<int>(wait_ms));
    for (int i = 0; i < count && running_; ++i) {
      // A handler may remove others, and itself.
      const uint64_t data = events[i].data.u64;
      const auto it = handlers_.find(static_cast<int>(static_cast<uint32_t>(data)));
      if (it != handlers_.end() && it->second.serial == data >> 32) {
        const auto call = it->second.call;
        (*call)();
      }
    }
    if (monotonic_ns() >= next_ns) {
      next_ns = monotonic_ns() + period_ns;
      if (periodic_ && running_) {
        periodic_();
      }
    }
  }
}

}  // namespace keepstep::agent
