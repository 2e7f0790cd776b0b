// How long this rank had nothing to do but wait for others: what is left of a step without it is the rank's own
// computing, by which stragglers are known (docs/design/stragglers.md).
//
// Counted is the time in which at least one thread waits. Who takes a collective's outcome through a future (DDP) does
// not show its waiting here; but it waits for its last collective right after it has handed it in, so from there to the
// end of that collective counts, if nothing was heard of the rank until it waited for something else.
//
// Any thread may call anything; a call costs a lock that is rarely contended. Times are of CLOCK_MONOTONIC.
#pragma once

#include <cstdint>
#include <mutex>

#include "comm/communicator.h"

namespace keepstep::comm {

class WaitClock {
 public:
  // A collective was handed in; its outcome will be taken through a future; it is over.
  void handed_in(OpId op, int64_t now_ns);
  void watched(OpId op);
  void over(OpId op, int64_t now_ns);

  // A thread begins to wait, for `op` if it is not 0; it does no more.
  void begin(OpId op, int64_t now_ns);
  void end(int64_t now_ns);

  // All waiting so far, without what is still under way.
  int64_t total_ns() const;

 private:
  struct Last {
    OpId op = 0;  // handed in last; 0: none, or its waiting is counted
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
