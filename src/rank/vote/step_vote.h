// The vote on a step: a tiny all-reduce of compare-and-swaps and one futex inside a node (docs/design/step_commit.md).
//
// A waiter sleeps; it does not spin while others compute. The last voter wakes all, and every rank that knows the
// decision yields its CPU once to those that do not yet.
//
// If the generation has members on other nodes, the last vote on this node does not decide. This node's leader (its
// lowest rank) then asks the other nodes' leaders (node_vote.h), and tells its node the common decision.
//
// The last voter compares what all ranks voted for (digest_vote.h). If the digests differ, nobody decides: the last
// voter reports it, and all ranks wait for the interruption that must follow.
//
// Called by the worker's main thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "brain/rank/rank.h"
#include "rank/link/page.h"
#include "rank/vote/node_vote.h"

namespace keepstep::rank {

using brain::kFlagDrain;
using brain::kFlagPause;
using brain::kFlagStop;

struct VoteResult {
  bool decided = false;  // false: sealed first; the verdict will decide
  uint32_t flags = 0;
  int64_t voted_ns = 0;    // CLOCK_MONOTONIC at the vote
  int64_t decided_ns = 0;  // and when this rank learned of the decision
};

class StepVote {
 public:
  // Reports that the ranks voted for different things, and nobody decided.
  using Differ = std::function<void(brain::Step)>;

  // `nodes`: for a leader among several nodes, else null; it does the comparing then. `members`: the pages of all ranks
  // if they are on one node. All must outlive the vote.
  StepVote(WorkerPage& self, GenerationPage& generation, brain::Identity identity, NodeVote* nodes = nullptr,
           std::vector<const WorkerPage*> members = {}, Differ differ = nullptr)
      : self_(self),
        generation_(generation),
        identity_(identity),
        nodes_(nodes),
        members_(std::move(members)),
        differ_(std::move(differ)) {}

  // Sets the word of a rank that enters the generation clean at `version`: open for version + 1.
  void open(brain::Version version);
  // open -> yes, waits for all, yes -> decided. Returns decided == false once sealed.
  VoteResult vote(brain::Step step, uint32_t flags);
  // decided -> open for the next step. False: sealed in between (the step is committed all the same).
  bool close(brain::Step step);

 private:
  bool swap(brain::Step step, brain::Vote from, brain::Step next_step, brain::Vote to);
  bool wait_decided(brain::Step step);
  bool wait_interrupted();
  bool decide_across(brain::Step step, bool last_here);
  void clear_next(brain::Step step);
  void announce(brain::Step step);

  WorkerPage& self_;
  GenerationPage& generation_;
  brain::Identity identity_;
  NodeVote* nodes_;
  std::vector<const WorkerPage*> members_;
  Differ differ_;
  bool recorded_ = false;  // by the root, before the others learn of the decision
};

}  // namespace keepstep::rank
