// How long this rank did nothing but wait for others. The rest of a step is the rank's own computing time, which
// identifies stragglers (docs/design/stragglers.md).
//
// Counts the time in which at least one thread waits. A caller that takes a collective's outcome through a future (DDP)
// does not report its waiting here. But it waits for its last collective right after submitting it. So the time from
// there to the end of that collective counts too, if the rank submits nothing else before it waits for something else.
//
// Any thread may call anything; a call takes one rarely contended lock. Times are CLOCK_MONOTONIC.
#pragma once

#include <cstdint>
#include <mutex>

#include "comm/communicator.h"

namespace keepstep::comm {

class WaitClock {
 public:
  // handed_in(): a collective was submitted; watched(): its outcome will be taken through a future; over(): it is over.
  void handed_in(OpId op, int64_t now_ns);
  void watched(OpId op);
  void over(OpId op, int64_t now_ns);

  // begin(): a thread starts to wait, for `op` if that is not 0; end(): it stops waiting.
  void begin(OpId op, int64_t now_ns);
  void end(int64_t now_ns);

  // All waiting so far, except what is still under way.
  int64_t total_ns() const;

 private:
  struct Last {
    OpId op = 0;  // submitted last; 0: none, or its waiting is already counted
    bool watched = false;
    int64_t from_ns = 0;
    int64_t over_ns = 0;  // 0: not yet
  };
  mutable std::mutex mutex_;
  Last last_;
  int waiting_ = 0;
  int64_t since_ns_ = 0;
  int64_t total_ns_ = 0;
};

}  // namespace keepstep::comm
