// How far a rank has come, as its agent sees it: values that the failure detector compares. Standard library only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Where in the training function the main thread is.
enum class StepPhase : uint8_t {
  kOutside = 0,     // before the loop over steps, after it, or joining a generation
  kBetween = 1,     // in the loop, before the first micro-batch of `step`
  kMicroBatch = 2,  // loads or computes micro-batch `micro_batch` of `step`
  kUpdate = 3,      // applies the update of `step`
};

enum class WaitsIn : uint8_t {
  kNothing = 0,
  kCollective = 1,  // it entered one that is not finished
  kMessage = 2,     // for a message to be sent or received
  kVote = 3,        // it voted on `step`
  kStore = 4,       // for a key in the Store
  kJoin = 5,        // for a generation to form
  kEnd = 6,         // its training function returned; waits for the others'
  kPause = 7,       // at the end of a step, for all others, because the world changes
};

enum class ProcessState : uint8_t { kRuns = 0, kStopped = 1, kTraced = 2 };

struct RankProgress {
  Rank rank = 0;
  WorkerId worker = kNoWorker;

  Step step = 0;             // 0: outside the loop
  uint32_t micro_batch = 0;  // of this rank in this step, from 1; 0: none yet
  StepPhase phase = StepPhase::kOutside;
  // Counters of this generation; they only grow.
  uint64_t entered = 0;        // collectives of any group
  uint64_t left = 0;           // of those, how many have finished
  uint64_t entered_world = 0;  // collectives of the group of all ranks
  uint64_t messages = 0;       // finished waits for messages
  uint64_t moved = 0;          // parts of collectives and messages that went through

  WaitsIn waits = WaitsIn::kNothing;
  std::string what;      // of a collective: "all_reduce"
  bool world = false;    // of a collective: needs all ranks
  uint64_t members = 0;  // otherwise, bit r: needs rank r; 0: not known
  bool slow = false;     // in a section that the user marked with run.slow

  ProcessState process = ProcessState::kRuns;
  // Total time the process wanted to run but could not: it waited for a CPU or for a disk. Only grows.
  Time starved{};

  Version committed = 0;  // the newest step whose update it finished
  Time committed_at{};    // when, by the clock of its machine; only differences count

  // For a rank on another node: how long its agent has not seen it move. std::nullopt: sampled here and now.
  std::optional<Time> still_for;
};

// What one agent knows about the ranks of a generation at one instant.
struct ProgressSample {
  Identity identity;
  uint32_t world = 0;               // ranks of the generation
  Version version = 0;              // committed steps when the generation was prepared
  bool trains = false;              // formed and not sealed: only then do ranks wait for each other
  std::vector<RankProgress> ranks;  // those the agent knows of, sorted by rank
};

const char* name(StepPhase phase);
// "step 118, micro-batch 3 (collective 4711 entered last)"
std::string place_text(const RankProgress& rank);
// "all_reduce", "the vote on step 118", ...
std::string wait_text(const RankProgress& rank);

}  // namespace keepstep::brain
