// Finds a rank that left the loop over steps early, while others wait for it in a later step. Pure.
//
// Every commit needs all ranks, so the remaining ranks wait for one that is gone: some condition was true on one rank
// only. The rank may come back (a second loop over steps; an evaluation of its own in between), so it is only reported.
// If its training function returned, it never comes back.
//
// Time counts only while it is watched, as in the FailureDetector. One per agent and job; single-threaded.
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
  Step step = 0;              // the one in which the others wait
  std::vector<Rank> waiting;  // the ranks that wait
  Time waited{};
  std::string because;  // one sentence

  // Its training function returned, so it never comes back: the job cannot continue.
  bool returned() const { return rank.waits == WaitsIn::kEnd; }
};

class EarlyLeavers {
 public:
  static constexpr Time kLimit = std::chrono::seconds(3);  // how long none of them may move

  // Takes one sample, a few times a second; `now` never goes back. Each rank is reported once in a generation, and once
  // more when it turns out that it will never come back. Ranks of other nodes are judged there.
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
  Time watched_{};  // this clock stops in gaps
  std::set<Rank> was_in_loop_;
  std::map<Rank, Watched> watched_ranks_;
};

}  // namespace keepstep::brain
