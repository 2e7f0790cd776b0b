// Whether all ranks voted for the same thing (design: docs/design/corruption.md). Pure.
//
// After reduction all ranks hold the same gradients, bit for bit. With its vote, each rank reports what it holds as 64
// bits. A rank that reports something different from the majority was silently corrupted.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// What one rank holds when it votes on a step. 0: the rank does not compare this in this step.
struct StepDigest {
  uint64_t gradients = 0;  // the reduced gradients of the step
  uint64_t state = 0;      // the protected state after the previous step
  auto operator<=>(const StepDigest&) const = default;
};

struct RankDigest {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  StepDigest digest;
  bool operator==(const RankDigest&) const = default;
};

struct Disagreement {
  Step step = 0;
  std::vector<RankDigest> said;  // by all ranks that reported something, sorted by rank
  std::vector<RankDigest> odd;   // those that differ from more than half of them; empty if there is no majority
  bool state = false;            // true if the protected state differs; false if only the gradients do
  std::string text;              // "the gradients of step 20 differ: ranks 0, 1, 3 have 0x.., rank 2 has 0x.."
};

// std::nullopt if they agree, or if fewer than two reported anything.
std::optional<Disagreement> compare(Step step, std::vector<RankDigest> said);

// The state's digest if that differs, else the gradients'; "0x5a5b..".
std::string digest_text(const StepDigest& digest, bool state);

}  // namespace keepstep::brain
