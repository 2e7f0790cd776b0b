// Finds a rank that left the loop over steps early, while others wait for it in a later step. Pure.
//
// Every commit needs all ranks, so the ranks that stayed wait for one that is gone: a condition was true on one rank
// only. Whoever left may come back (a second loop over steps; an evaluation of its own in between): then it is only
// told. It never comes where its training function returned.
//
// Time counts only while it is watched, as for the FailureDetector. One per agent and job; one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "brain/detect/progress.h"
#include "brain/types.h"

namespace keepstep::brain {

struct EarlyLeaver {
  RankProgress rank;
  Step after = 0;             // the last step it committed
  Step step = 0;              // in which the others wait
  std::vector<Rank> waiting;  // these
  Time waited{};
  std::string because;  // one sentence

  // Its training function did, so it never comes: the job cannot go on.
  bool returned() const { return rank.waits == WaitsIn::kEnd; }
};

class EarlyLeavers {
 public:
  static constexpr Time kLimit = std::chrono::seconds(3);  // without any of them moving

  // One sample, a few times a second; `now` never goes back. Each rank is told of once in a generation, and once more
  // when it turns out that it never comes. Ranks of other nodes are judged there.
  std::vector<EarlyLeaver> step(const ProgressSample& sample, Time now);

 private:
  struct Watched {
    std::string place;  // of the rank and of those that wait for it
    Time since{};       // on the watched clock
    bool told = false;
    bool told_of_return = false;
  };

  Identity identity_;
  bool entered_ = false;
  Time last_{};     // of the last sample
  Time watched_{};  // the clock that stands still in gaps
  std::set<Rank> was_in_loop_;
  std::map<Rank, Watched> watched_ranks_;
};

}  // namespace keepstep::brain
