// Rung 3 of the ladder: every process is replaced, and the state comes from those that hold it. Pure.
//
// This happens in two halves, so that the state is never in one process alone if it was in several. Of the clean
// members, every second one stays while all others are replaced and hydrated. Once that generation has formed, those
// that stayed are replaced.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

class Renewal {
 public:
  explicit Renewal(Job& job) : job_(job) {}

  void begin();  // all that are alive now are to be replaced, after the verdict
  // The verdict is out: ends those whose turn it is.
  void renew();
  // The generation has formed: the new processes have the state. True if others are to go, after another verdict.
  bool goes_on();
  void forget();

 private:
  Job& job_;
  std::set<WorkerId> outdated_;  // processes that have yet to be replaced
  bool due_ = false;             // some of them go once the verdict is out
};

}  // namespace keepstep::brain
