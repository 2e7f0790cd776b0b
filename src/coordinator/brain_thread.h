// The one thread that owns the membership brain: takes events from a queue, keeps time, and passes on effects.
//
// Time is monotonic, since the thread was made. A Tick comes about every 100 ms, however many events there are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "brain/membership/membership.h"

namespace keepstep::coordinator {

class BrainThread {
 public:
  // Both are called on the brain's thread: `carry_out` for each effect in order, with the identity after the event that
  // caused it; `on_tick` with each Tick.
  using CarryOut = std::function<void(const brain::Effect&, brain::Identity)>;
  using OnTick = std::function<void()>;
  BrainThread(const brain::MembershipConfig& config, CarryOut carry_out, OnTick on_tick);
  ~BrainThread();  // stop()

  void post(brain::Event event);  // any thread
  void stop();                    // drops queued events and joins; idempotent; not from the callbacks

  brain::Identity identity() const { return identity_.load(); }  // any thread; the newest prepared generation's

 private:
  void run();
  void step(const brain::Event& event);

  brain::Membership brain_;  // the thread's own
  const CarryOut carry_out_;
  const OnTick on_tick_;
  const int64_t started_ns_;
  std::atomic<brain::Identity> identity_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<brain::Event> queue_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace keepstep::coordinator
