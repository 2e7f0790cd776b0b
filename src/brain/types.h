// Value types shared by brains, pages and messages. Only the standard library.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace keepstep::brain {

// Time since the job started. Always passed as a parameter; brains read no clock.
using Time = std::chrono::nanoseconds;

using NodeId = uint32_t;    // an agent; assigned by the launcher
using WorkerId = uint32_t;  // one incarnation of a worker process; assigned by the coordinator, never reused
using Rank = uint32_t;

inline constexpr WorkerId kNoWorker = std::numeric_limits<WorkerId>::max();

// The identity of a membership. Compared by term first; only ever grows; every message carries it.
struct Identity {
  uint32_t term = 0;
  uint32_t generation = 0;
  auto operator<=>(const Identity&) const = default;
};

// Steps are numbered from 1: step k turns version k-1 of the protected state into version k. So a version is the number
// of committed steps.
using Step = uint64_t;
using Version = uint64_t;

enum class Vote : uint8_t { kOpen = 0, kYes = 1, kDecided = 2 };

// The step word of a rank (docs/design/step_commit.md): its vote on `step`, and whether it was sealed.
struct StepWord {
  Identity identity;
  Step step = 0;
  Vote vote = Vote::kOpen;
  bool sealed = false;
  bool operator==(const StepWord&) const = default;
};

// Packed into 64 bits so that it can be changed by compare-and-swap: sealed 1, vote 2, term 9, generation 20, step 32.
// Packing asserts the ranges; 2^20 generations and 2^32 steps outlive any job.
uint64_t pack(const StepWord& word);
StepWord unpack_step_word(uint64_t bits);
inline constexpr uint64_t kSealedBit = uint64_t{1} << 63;

// The condition of a worker's protected state. Only kClean counts in a verdict and may be read by others.
enum class StateKind : uint8_t { kEmpty = 0, kHydrating = 1, kClean = 2, kUpdating = 3 };
struct StateWord {
  StateKind kind = StateKind::kEmpty;
  Version version = 0;
  bool operator==(const StateWord&) const = default;
};
uint64_t pack(const StateWord& word);
StateWord unpack_state_word(uint64_t bits);

const char* name(Vote vote);
const char* name(StateKind kind);

// One value of a journal line.
using Field = std::pair<std::string, std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>>;

}  // namespace keepstep::brain
