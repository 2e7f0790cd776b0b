// A rank's steps in a generation: the vote on each, its update, and the records published with it (step_vote.h,
// log_ring.h). Main thread, unless a method says otherwise.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "rank/link/agent_line.h"
#include "rank/link/log_ring.h"
#include "rank/link/rank_generation.h"
#include "rank/vote/node_vote.h"
#include "rank/vote/step_vote.h"

namespace keepstep::rank {

class Steps {
 public:
  Steps(AgentLine& agent, RankGeneration& generation)
      : agent_(agent), generation_(generation), log_(generation.own + WorkerLayout::kLog) {}
  // `broken_link`: see Engine::broken_link.
  void enter(std::function<std::string()> broken_link);
  void leave_generation();  // before the next generation's communicator is made

  // Answers Prepare: opens the word for version + 1. ABORTED: it is already sealed.
  Status open();
  // Waits until all members, including this rank, are clean at the generation's version. ABORTED: interrupted while it
  // formed.
  Status form();

  // `flags`: brain::StepFlag; adds kFlagDrain after a notice, and kFlagPause once this generation is to pause.
  VoteResult vote(brain::Step step, uint32_t flags);
  const VoteResult& last_vote() const { return last_vote_; }
  // After an interrupted vote: the verdict's version; CANCELLED if the job ends instead.
  StatusOr<brain::Version> wait_verdict();
  // After a verdict that commits `step`: the flags that vote() would have returned.
  uint32_t decided_flags(brain::Step step) const { return load_flags(*generation_.page.load(), step); }
  void begin_update(brain::Step step);
  // The state is clean at `step`, and the log reports it to the agent. False if the word was sealed meanwhile. Waits
  // for room in the log if has_room() is false.
  bool end_update(brain::Step step);
  bool updating() const { return updating_.load(); }  // any thread

  // Publishes the user's values with `step`: a JSON object as text. The agent reads it within 100 ms, even if this
  // process dies. Waits for room like end_update. INVALID_ARGUMENT: more than kMaxLogTextBytes.
  Status log(brain::Step step, std::string_view values);
  // Whether the log has room for any entry, so that end_update and log do not wait.
  bool has_room() { return log_.has_room(); }
  // Waits until it has room: asks the agent to empty the log.
  void make_room();

  // The digest that this rank votes for in `step`; call it before vote(). Steps without one are not compared.
  void record_digest(brain::Step step, const brain::StepDigest& digest) {
    store_digest(generation_.own_page(), step, digest);
  }
  void record_loss(brain::Step step, double sum, uint64_t micro_batches);
  // Mean over all micro-batches of all ranks, added in rank order; valid between the decision on `step` and the vote on
  // step + 1. NaN if no rank recorded a loss; among several nodes also after a verdict that came without it.
  double mean_loss(brain::Step step) const;

  // ---- progress, for the agent (progress_words.h) ----
  // The main thread starts micro-batch `micro_batch` (from 1) of `step`; 0: the step itself. Costs one store.
  void at(brain::Step step, uint64_t micro_batch);
  void leave_loop();  // the main thread is in no step
  // A section that may take long begins (+1) or ends (-1): meanwhile this rank is not considered hung.
  void slow(int change);

 private:
  AgentLine& agent_;
  RankGeneration& generation_;
  std::unique_ptr<NodeVote> node_vote_;  // of its node's leader among several nodes; outlives the communicator
  std::unique_ptr<StepVote> vote_;
  VoteResult last_vote_;
  std::atomic<bool> updating_{false};
  LogWriter log_;
  bool committed_here_ = false;  // a step, in this generation
  int64_t committed_ns_ = 0;     // when the last one was; 0: none in this generation
  int64_t waited_ns_ = 0;        // spent waiting for others until then
};

}  // namespace keepstep::rank
