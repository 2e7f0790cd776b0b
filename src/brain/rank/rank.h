// A rank's brain: what its process does next, from its first rank to the end of the job. Pure; src/rank/engine is its
// shell, training loops in Python and in C++ stand on that, and the random schedules run it against node.h.
//
// It owns where this process is in its life, and how many steps are committed. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Flags that a rank raises with its vote; all ranks see their union after the same step.
// The bits from kFlagFirstPlace on are of places for checkpoints, the first place's lowest: 8 for those where a rank
// has not ended the save before, then 8 for those that are behind (python/keepstep/torch/checkpoint/manager.py).
enum StepFlag : uint32_t {
  kFlagPause = 1,  // the world changes after this step
  kFlagDrain = 2,  // the job stops after this step
  kFlagStop = 8,
  kFlagVeto = 16,  // no rank updates anything in this step
  kFlagFirstPlace = 1 << 8,
};

enum class RankPhase : uint8_t {
  kNoRank,    // it never had one
  kJoining,   // it has one in a generation that forms
  kBetween,   // its generation formed; it is between two steps
  kStep,      // it computes one
  kVoted,     // it voted on that, and the step does not count yet, or its update is not done
  kLeft,      // it left an interrupted generation, and waits for its next rank
  kFinished,  // all ranks finished: nothing is done again
};

// A rank's place in a generation.
struct Place {
  Rank rank = 0;
  uint32_t world = 0;
  uint32_t sharding = 0;  // how sharded state is divided (Sharding::number)
};

// What the process has to do because its place is another one than before.
struct Moved {
  bool regroup = false;  // process groups go: they are of another rank or size, or of what is built anew
  bool rebuild = false;  // sharded state is divided otherwise: everything is built anew, before this rank joins
  // The training function hears that the world is another one than `resized_from`, or again of that size. With
  // `put_back` options are put back before: it was told of worlds in between.
  bool resized = false;
  uint32_t resized_from = 0;
  bool put_back = false;
};

// Where a rank gets the state of its generation's version from.
enum class Fill : uint8_t {
  kNothing,  // it has that
  kPeers,    // living ranks that have it
  kCopy,     // a copy of what only this rank had
  kParts,    // copies of what others had, before the state was resharded
  kSaved,    // where it was saved, for no living rank has it
};

struct Joining {
  Fill fill = Fill::kNothing;
  bool gives = false;  // others fill theirs from this rank
};

// What follows in the loop over steps.
enum class NextStep : uint8_t {
  kStep,   // the one after the last committed one
  kLeave,  // the generation is interrupted
  kPause,  // the world changes
  kStop,   // the job stops before its last step: a notice came
  kEnd,    // there are no more steps
};

enum class AfterVote : uint8_t { kUpdate, kAwaitVerdict };

class RankBrain {
 public:
  RankPhase phase() const { return phase_; }
  // Committed steps. With a new rank: those that its generation goes on from.
  Version version() const { return version_; }
  // That it computes or voted on; 0: it is in none.
  Step step() const { return phase_ == RankPhase::kStep || phase_ == RankPhase::kVoted ? version_ + 1 : 0; }
  bool formed() const;                               // its generation did, and it did not leave it
  bool ever_formed() const { return ever_formed_; }  // one did, with this process in it
  // All ranks know, until this one leaves the generation: after the last committed step
  bool pauses() const { return (flags_ & kFlagPause) != 0; }  // the world changes;
  bool stops() const { return (flags_ & kFlagDrain) != 0; }   // the job stops.

  // ---- membership ----
  // It has a place in a newer generation, which goes on from `version`.
  Moved assigned(const Place& place, Version version);
  // What this process built depends on its rank: it is for the sharding of its place.
  void built() { built_for_ = place_.sharding; }
  // It let all of that go. Until then each new place says again that it has to be built anew.
  void let_go();
  // That generation goes on: `sources` have its version, `targets` do not. `own`: the state of this rank.
  // `sharded`: no other rank holds what this one does; sources and targets say nothing of it then. `as_built`: nothing
  // changed that state since it was built.
  Joining activated(const std::vector<Rank>& sources, const std::vector<Rank>& targets, StateWord own, bool sharded,
                    bool as_built);
  // Where kCopy was to be: what of it is left in memory of nodes. `parts`: of a division before, whole.
  static Fill found(bool copy, bool parts) { return copy ? Fill::kCopy : parts ? Fill::kParts : Fill::kSaved; }
  void joined();  // the generation formed
  // It is interrupted, and this rank left what it did. Where that comes late, and this rank has its next one already,
  // or where it never had one, nothing changes.
  void left();
  void finished();  // all ranks of it finished
  // The process entered another recoverable function: it begins again, without a rank and at version 0.
  void start_again();

  // ---- steps ----
  NextStep next(Step until, bool interrupted);
  // It votes on step(): this is not taken back.
  void voting();
  // `decided`: all ranks voted, with `flags` in all. Else the word was sealed first.
  AfterVote voted(bool decided, uint32_t flags);
  // What the verdict, that the job goes on from `version`, means for step(): whether it counts.
  bool counts(Version version) const { return version >= step(); }
  // The update of step() is done: it is committed.
  void updated();

 private:
  RankPhase phase_ = RankPhase::kNoRank;
  Place place_;
  uint32_t told_world_ = 0;            // what the training function takes for the number of ranks
  uint32_t left_world_ = 0;            // the world that it left, while the state is of that; else 0
  std::optional<uint32_t> built_for_;  // a sharding; none: nothing depends on it
  Version version_ = 0;
  uint32_t flags_ = 0;  // that all ranks raised with the last vote, where all heard of them
  bool ever_formed_ = false;
};

}  // namespace keepstep::brain
