#include "coordinator/brain_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace keepstep::coordinator {
namespace {

constexpr std::chrono::milliseconds kTickInterval{100};

}  // namespace

BrainThread::BrainThread(const brain::MembershipConfig& config, CarryOut carry_out, OnTick on_tick)
    : brain_(config),
      carry_out_(std::move(carry_out)),
      on_tick_(std::move(on_tick)),
      started_ns_(monotonic_ns()),
      identity_(brain_.identity()),
      thread_([this] { run(); }) {}

BrainThread::~BrainThread() { stop(); }

void BrainThread::post(brain::Event event) {
  bool sleeps = false;
  {
    const std::lock_guard lock(mutex_);
    sleeps = queue_.empty();
    queue_.push_back(std::move(event));
  }
  if (sleeps) {
    wake_.notify_one();
  }
}

void BrainThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BrainThread::run() {
  pthread_setname_np(pthread_self(), "ks-brain");
  auto next_tick = std::chrono::steady_clock::now() + kTickInterval;
  std::vector<brain::Event> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, next_tick, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) {
        return;
      }
      batch.swap(queue_);
    }
    for (const brain::Event& event : batch) {
      step(event);
    }
    batch.clear();
    if (const auto now = std::chrono::steady_clock::now(); now >= next_tick) {
      next_tick = now + kTickInterval;
      on_tick_();
      step(brain::Tick{});
    }
  }
}

void BrainThread::step(const brain::Event& event) {
  const brain::Effects effects = brain_.step(event, brain::Time(monotonic_ns() - started_ns_));
  identity_.store(brain_.identity());
  for (const brain::Effect& effect : effects) {
    carry_out_(effect, brain_.identity());
  }
}

}  // namespace keepstep::coordinator
