#include "rank/vote/step_vote.h"

#include <sched.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "rank/vote/digest_vote.h"

namespace keepstep::rank {

using brain::Step;
using brain::StepWord;
using brain::Vote;

void StepVote::open(brain::Version version) {
  self_.word.store(brain::pack(StepWord{identity_, version + 1, Vote::kOpen, false}), std::memory_order_seq_cst);
}

bool StepVote::swap(Step step, Vote from, Step next_step, Vote to) {
  uint64_t expected = brain::pack(StepWord{identity_, step, from, false});
  const uint64_t wanted = brain::pack(StepWord{identity_, next_step, to, false});
  if (self_.word.compare_exchange_strong(expected, wanted, std::memory_order_seq_cst)) {
    return true;
  }
  KEEPSTEP_CHECK((expected & brain::kSealedBit) != 0, "a step word changed by somebody who did not seal it");
  return false;
}

VoteResult StepVote::vote(Step step, uint32_t flags) {
  VoteResult result;
  result.voted_ns = monotonic_ns();
  VoteCell& cell = generation_.cells[step % 2];
  if (flags != 0) {
    // Before the vote counts: if the sealed words alone lead to forward, all flags must be there.
    cell.flags.fetch_or(flags);
  }
  if (!swap(step, Vote::kOpen, step, Vote::kYes)) {
    return result;
  }
  const bool last_here = cell.voted.fetch_add(1) + 1 == generation_.world;
  if (generation_.across != 0) {
    if (!decide_across(step, last_here)) {
      return result;
    }
  } else if (last_here) {
    if (digests_of(members_, step).kind == DigestSum::Kind::kDiffer) {
      differ_(step);
      wait_interrupted();
      return result;
    }
    clear_next(step);
    announce(step);
  } else if (!wait_decided(step)) {
    return result;
  }
  result.flags = cell.flags.load();
  result.decided = std::exchange(recorded_, false) || swap(step, Vote::kYes, step, Vote::kDecided);
  result.decided_ns = monotonic_ns();
  // In a virtual machine the kernel may take a halted CPU for a busy one, and queue the ranks we woke behind us on our
  // own CPU. Without this yield they would learn of the decision only at the end of our time slice.
  sched_yield();
  return result;
}

// All have voted on this step, so all have finished reading the other cell: we may clear it for the next step.
void StepVote::clear_next(Step step) {
  VoteCell& next = generation_.cells[(step + 1) % 2];
  next.voted.store(0, std::memory_order_relaxed);
  next.flags.store(0, std::memory_order_relaxed);
}

void StepVote::announce(Step step) {
  generation_.decided.store(static_cast<uint32_t>(step));
  ring(generation_);
}

bool StepVote::wait_decided(Step step) {
  const auto wanted = static_cast<uint32_t>(step);
  return wait_until(generation_, [&] { return generation_.decided.load() == wanted; });
}

// Returns false, once the generation is interrupted.
bool StepVote::wait_interrupted() {
  return wait_until(generation_, [] { return false; });
}

bool StepVote::decide_across(Step step, bool last_here) {
  if (nodes_ == nullptr) {
    if (last_here) {
      ring(generation_);  // our leader waits for this vote
    }
    return wait_decided(step);
  }
  VoteCell& cell = generation_.cells[step % 2];
  if (!last_here && !wait_until(generation_, [&] { return cell.voted.load() == generation_.world; })) {
    return false;
  }
  clear_next(step);
  // The root's page is never lost while the job lives: its record survives even if all other ranks that decided are
  // lost with their nodes (step_commit.md).
  const std::optional<NodeVote::Decision> decision =
      nodes_->vote(step, cell.flags.load(), [&](const NodeVote::Decision& reached) {
        store_mean(generation_, step, reached.mean, reached.flags);
        recorded_ = swap(step, Vote::kYes, step, Vote::kDecided);
        return recorded_;
      });
  if (!decision.has_value()) {
    // Some leader may know that all voted: keep what is needed to apply the step until the verdict.
    return wait_interrupted();
  }
  cell.flags.store(decision->flags);
  store_mean(generation_, step, decision->mean, decision->flags);
  announce(step);
  return true;
}

bool StepVote::close(Step step) { return swap(step, Vote::kDecided, step + 1, Vote::kOpen); }

}  // namespace keepstep::rank
