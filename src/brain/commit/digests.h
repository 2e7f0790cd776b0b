// Whether all ranks voted for the same thing (design: docs/design/corruption.md). Pure.
//
// After reduction all ranks hold the same gradients, bit for bit. Each rank says with its vote what it holds, as 64
// bits; who says something else than most was corrupted on the way, silently.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// What one rank holds when it votes on a step. 0: it does not compare this in this step.
struct StepDigest {
  uint64_t gradients = 0;  // the reduced gradients of the step
  uint64_t state = 0;      // the protected state as of the step before
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
  std::vector<RankDigest> said;  // by all ranks that said something, by rank
  std::vector<RankDigest> odd;   // who differs from more than half of them; empty: no such half
  bool state = false;            // the protected state differs; else only the gradients do
  std::string text;              // "the gradients of step 20 differ: ranks 0, 1, 3 have 0x.., rank 2 has 0x.."
};

// Nothing: they agree, or fewer than two said anything.
std::optional<Disagreement> compare(Step step, std::vector<RankDigest> said);

// The state's digest where that differs, else the gradients'; "0x5a5b..".
std::string digest_text(const StepDigest& digest, bool state);

}  // namespace keepstep::brain
