// Which rank contributes which partial sums to a canonical sum, and whether they make up its tree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/canonical_tree.h"
#include "comm/operation.h"

namespace keepstep::comm {

// What each rank publishes when it enters: its leaves, and its share of the divisor.
struct CanonicalPart {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint64_t weight = 0;
};

struct CanonicalPlan {
  struct Source {
    Subtree leaves;
    size_t member;   // group rank
    size_t partial;  // which of that member's partial sums
  };
  std::vector<Source> sources;  // of all ranks, in the order of their leaves
  size_t most = 1;              // the most partial sums that one rank contributes
  uint64_t weight = 0;          // of all ranks

  // `parts`: by group rank. Returns an empty string if each of the `leaves` belongs to exactly one rank; else why not,
  // with the same text on all ranks.
  std::string learn(const Group& group, uint32_t leaves, std::span<const CanonicalPart> parts);
};

}  // namespace keepstep::comm
