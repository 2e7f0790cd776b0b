// A rank's brain: what its process does next, from its first rank to the end of the job. Pure; src/rank/engine is its
// shell, training loops in Python and C++ build on that, and the random schedules run it against node.h.
//
// It owns the process's phase of life and the number of committed steps. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Flags that a rank raises with its vote; all ranks see their union after the same step.
// The bits from kFlagFirstDestination on belong to checkpoint destinations, the first one's lowest: 8 for those where a
// rank has not finished its last save, then 8 for those that are behind (python/keepstep/torch/checkpoint/manager.py).
enum StepFlag : uint32_t {
  kFlagPause = 1,  // the world changes after this step
  kFlagDrain = 2,  // the job stops after this step
  kFlagStop = 8,
  kFlagVeto = 16,  // no rank updates anything in this step
  kFlagFirstDestination = 1 << 8,
};

enum class RankPhase : uint8_t {
  kNoRank,    // it never had a rank
  kJoining,   // it has a rank in a generation that is forming
  kBetween,   // its generation formed; it is between two steps
  kStep,      // it computes a step
  kVoted,     // it voted on the step, which does not count yet or is not applied yet
  kLeft,      // it left an interrupted generation, and waits for its next rank
  kFinished,  // all ranks finished: nothing is redone
};

// A rank's place in a generation.
struct Assignment {
  Rank rank = 0;
  uint32_t world = 0;
  uint32_t sharding = 0;  // how sharded state is divided (Sharding::number)
};

// What the process must do because its place has changed.
struct Moved {
  bool regroup = false;  // process groups go: their rank or size changes, or what they belong to is rebuilt
  bool rebuild = false;  // the sharding has changed: everything is rebuilt before this rank joins
  // The training function is told that the world is no longer `resized_from`, or is that size again. With `put_back`,
  // options are restored first, because it was told of worlds in between.
  bool resized = false;
  uint32_t resized_from = 0;
  bool put_back = false;
};

// Where a rank gets the state of its generation's version.
enum class Fill : uint8_t {
  kNothing,  // it already has it
  kPeers,    // from living ranks that have it
  kCopy,     // from a copy of what only this rank had
  kParts,    // from copies of what others had, before the state was resharded
  kSaved,    // from where it was saved, as no living rank has it
};

struct Joining {
  Fill fill = Fill::kNothing;
  bool gives = false;  // others fill their state from this rank
};

// What follows in the loop over steps.
enum class NextStep : uint8_t {
  kStep,   // the step after the last committed one
  kLeave,  // the generation is interrupted
  kPause,  // the world changes
  kStop,   // the job stops before its last step, after a notice
  kEnd,    // there are no more steps
};

enum class AfterVote : uint8_t { kUpdate, kAwaitVerdict };

class RankBrain {
 public:
  RankPhase phase() const { return phase_; }
  // Committed steps. With a new rank: those that its generation continues from.
  Version version() const { return version_; }
  // The step that it computes or voted on; 0 if none.
  Step step() const { return phase_ == RankPhase::kStep || phase_ == RankPhase::kVoted ? version_ + 1 : 0; }
  bool formed() const;                               // its generation did, and this rank has not left it
  bool ever_formed() const { return ever_formed_; }  // some generation did, with this process in it
  // All ranks know these, until this one leaves the generation: after the last committed step
  bool pauses() const { return (flags_ & kFlagPause) != 0; }  // the world changes;
  bool stops() const { return (flags_ & kFlagDrain) != 0; }   // the job stops.

  // ---- membership ----
  // The process has a place in a newer generation, which continues from `version`.
  Moved assigned(const Assignment& assignment, Version version);
  // What this process built depends on its rank: it is valid for the sharding of its assignment.
  void built() { built_for_ = assignment_.sharding; }
  // The process released all of that. Until it does, each new place says again that it must be rebuilt.
  void let_go();
  // The generation continues: `sources` have its version, `targets` do not. `own`: the state of this rank. `sharded`:
  // no other rank holds what this one does, so sources and targets are irrelevant. `as_built`: nothing has changed that
  // state since it was built.
  Joining activated(const std::vector<Rank>& sources, const std::vector<Rank>& targets, StateWord own, bool sharded,
                    bool as_built);
  // Refines kCopy: what is left of it in the memory of nodes. `parts`: of the previous sharding, whole.
  static Fill found(bool copy, bool parts) { return copy ? Fill::kCopy : parts ? Fill::kParts : Fill::kSaved; }
  void joined();  // the generation formed
  // The generation was interrupted, and this rank left what it did. No effect if this comes late and the rank already
  // has its next assignment, or if it never had a rank.
  void left();
  void finished();  // all ranks of the generation finished
  // The process entered another recoverable function: it starts again, without a rank and at version 0.
  void start_again();

  // ---- steps ----
  NextStep next(Step until, bool interrupted);
  // It votes on step(), which cannot be undone.
  void voting();
  // `decided`: all ranks voted; `flags` is their union. Otherwise the word was sealed first.
  AfterVote voted(bool decided, uint32_t flags);
  // Whether step() counts after the verdict that the job continues from `version`.
  bool counts(Version version) const { return version >= step(); }
  // The update of step() is finished: the step is committed.
  void updated();

 private:
  RankPhase phase_ = RankPhase::kNoRank;
  Assignment assignment_;
  uint32_t told_world_ = 0;            // the number of ranks, as the training function was told
  uint32_t left_world_ = 0;            // the world it left, as long as the state is of that world; otherwise 0
  std::optional<uint32_t> built_for_;  // a sharding; std::nullopt if nothing depends on it
  Version version_ = 0;
  uint32_t flags_ = 0;  // raised by any rank with the last vote, once all have heard of them
  bool ever_formed_ = false;
};

}  // namespace keepstep::brain
