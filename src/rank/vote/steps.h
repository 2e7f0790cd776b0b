// A rank's steps in a generation: the vote on each, its update, and what is published with it (step_vote.h,
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
  void leave_generation();  // before the communicator of the next one

  // Answers Prepare: the word is open for the version + 1. ABORTED: it is sealed already.
  Status open();
  // All members are clean at the generation's version, this rank too. ABORTED: interrupted while it formed.
  Status form();

  // `flags`: brain::StepFlag; kFlagDrain is added once a notice came, kFlagPause once this generation is to pause.
  VoteResult vote(brain::Step step, uint32_t flags);
  const VoteResult& last_vote() const { return last_vote_; }
  // After an interrupted vote: the version the verdict says; CANCELLED if the job ends instead.
  StatusOr<brain::Version> wait_verdict();
  // After a verdict that counts `step`: what vote() would have said of the flags.
  uint32_t decided_flags(brain::Step step) const { return load_flags(*generation_.page.load(), step); }
  void begin_update(brain::Step step);
  // The state is clean at `step`, and the log says so to the agent. False if the word was sealed meanwhile. Waits for
  // room in the log if has_room() says there is none.
  bool end_update(brain::Step step);
  bool updating() const { return updating_.load(); }  // any thread

  // What the user wants published with `step`: a JSON object as text. Read by the agent within 100 ms, and after this
  // process's death too. Waits for room like end_update. INVALID_ARGUMENT: more than kMaxLogTextBytes.
  Status log(brain::Step step, std::string_view values);
  // Whether the log has room for any entry, so that the two above do not wait.
  bool has_room() { return log_.has_room(); }
  // Waits until it has: asks the agent to empty the log.
  void make_room();

  // What this rank votes for in `step`; before vote(). Steps without it are not compared.
  void record_digest(brain::Step step, const brain::StepDigest& digest) {
    store_digest(generation_.own_page(), step, digest);
  }
  void record_loss(brain::Step step, double sum, uint64_t micro_batches);
  // Mean over all micro-batches of all ranks, added in rank order; valid between the decision on `step` and the vote
  // on step + 1. NaN if no rank recorded one; among several nodes also after a verdict that came without it.
  double mean_loss(brain::Step step) const;

  // ---- how far we are, for the agent (progress_words.h) ----
  // The main thread begins with micro-batch `micro_batch` (from 1) of `step`; 0: with the step. Costs one store.
  void at(brain::Step step, uint64_t micro_batch);
  void leave_loop();  // it is in no step
  // A section that may take long begins (+1) or ends (-1): meanwhile this rank is not taken for hung.
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
  int64_t committed_ns_ = 0;     // the last one; 0: none in this generation
  int64_t waited_ns_ = 0;        // for others until then
};

}  // namespace keepstep::rank
