#include "brain/rank/rank.h"

#include <algorithm>
#include <utility>

#include "brain/require.h"

namespace keepstep::brain {

bool RankBrain::formed() const {
  return phase_ == RankPhase::kBetween || phase_ == RankPhase::kStep || phase_ == RankPhase::kVoted ||
         phase_ == RankPhase::kFinished;
}

Moved RankBrain::assigned(const Assignment& assignment, Version version) {
  require(phase_ != RankPhase::kFinished, "a rank that finished gets another one");
  const Assignment before = std::exchange(assignment_, assignment);
  Moved moved;
  if (before.world != 0) {
    moved.rebuild = built_for_.has_value() && *built_for_ != assignment.sharding;
    moved.regroup = moved.rebuild || before.rank != assignment.rank || before.world != assignment.world;
    moved.resized = told_world_ != assignment.world;
    // There may have been a world in between that not all ranks heard of: all go from the one they left to this one.
    moved.put_back = moved.resized && left_world_ != 0;
    moved.resized_from = moved.put_back ? left_world_ : told_world_;
  }
  told_world_ = assignment.world;
  phase_ = RankPhase::kJoining;
  version_ = version;
  flags_ = 0;
  return moved;
}

Joining RankBrain::activated(const std::vector<Rank>& sources, const std::vector<Rank>& targets, StateWord own,
                             bool sharded, bool as_built) {
  if (sharded) {
    const bool fresh = version_ == 0 && own == StateWord{StateKind::kEmpty, 0} && as_built;
    const bool has = fresh || own == StateWord{StateKind::kClean, version_};
    left_world_ = has ? left_world_ : 0;
    return {has ? Fill::kNothing : Fill::kCopy, false};
  }
  if (std::find(targets.begin(), targets.end(), assignment_.rank) != targets.end()) {
    left_world_ = 0;  // whatever fills it was already told of this world
    return {sources.empty() ? Fill::kSaved : Fill::kPeers, false};
  }
  return {Fill::kNothing, !targets.empty()};
}

void RankBrain::let_go() {
  built_for_.reset();
  left_world_ = 0;
}

void RankBrain::joined() {
  require(phase_ == RankPhase::kJoining, "a generation formed with a rank that does not join it");
  phase_ = RankPhase::kBetween;
  ever_formed_ = true;
  left_world_ = 0;
}

void RankBrain::left() {
  if (formed() && phase_ != RankPhase::kFinished) {
    phase_ = RankPhase::kLeft;
    left_world_ = assignment_.world;
  } else if (left_world_ != 0) {
    told_world_ = left_world_;  // joining failed, and leaving restores what the function did for worlds since then
    flags_ = 0;                 // the next members do not know of them; the next vote raises them again
  }
}

void RankBrain::finished() { phase_ = RankPhase::kFinished; }

void RankBrain::start_again() {
  require(phase_ == RankPhase::kFinished, "a rank begins another function before all finished this one");
  *this = RankBrain();
}

NextStep RankBrain::next(Step until, bool interrupted) {
  if (interrupted) {
    return NextStep::kLeave;
  }
  require(formed(), "a rank goes on with the steps of a generation that did not form");
  if (version_ >= until) {
    return NextStep::kEnd;
  }
  if (pauses()) {
    return NextStep::kPause;
  }
  if (stops()) {
    return NextStep::kStop;
  }
  phase_ = RankPhase::kStep;
  return NextStep::kStep;
}

void RankBrain::voting() {
  require(phase_ == RankPhase::kStep, "a rank votes outside of a step, or twice");
  phase_ = RankPhase::kVoted;
}

AfterVote RankBrain::voted(bool decided, uint32_t flags) {
  require(phase_ == RankPhase::kVoted, "a vote ended that did not begin");
  flags_ = decided ? flags : 0;  // otherwise the generation is over, and so are its flags
  return decided ? AfterVote::kUpdate : AfterVote::kAwaitVerdict;
}

void RankBrain::updated() {
  require(phase_ == RankPhase::kVoted, "a step counts that this rank did not vote on");
  ++version_;
  phase_ = RankPhase::kBetween;
}

}  // namespace keepstep::brain
