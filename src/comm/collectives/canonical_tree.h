// The canonical tree over the leaves of a sum: the order in which they are added, whichever rank adds them. Pure.
//
// Floating-point addition rounds, so a sum's bits depend on its bracketing. Here the bracketing depends only on the
// number of leaves: a tree over one leaf is that leaf; a tree over n > 1 leaves has the largest power of two below n of
// them on its left and the rest on its right (the shape of RFC 6962's Merkle trees). Therefore
//   - leaves [k*2^j, (k+1)*2^j) are a subtree wherever they are, so code that adds leaves as they arrive, with carries
//     like a binary counter, needs the tree's size only at its right edge;
//   - any contiguous run of leaves is at most 2 * bit_width(n) - 2 whole subtrees. Other ranks need only their sums,
//     and the number of owners of runs does not change the bracketing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace keepstep::comm {

// Leaves [begin, end) of a tree over `leaves`. In a training step a leaf is a micro-batch.
struct LeafRun {
  uint32_t leaves = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  bool empty() const { return begin == end; }
  bool operator==(const LeafRun&) const = default;
};

// All leaves under one node: [begin, end).
struct Subtree {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const Subtree&) const = default;
};

// Empty if 0 <= begin <= end <= leaves and 1 <= leaves <= kMaxLeaves; else why not.
inline constexpr uint32_t kMaxLeaves = 1U << 24;
std::string why_not(const LeafRun& run);

// The fewest subtrees that make up `run`, in the order of their leaves; their number; and the largest such number for
// any run of a tree over `leaves`. `run` must be valid.
std::vector<Subtree> maximal_subtrees(const LeafRun& run);
size_t count_maximal_subtrees(const LeafRun& run);
size_t max_subtree_count(uint32_t leaves);

// Code that adds the leaves or whole subtrees of a run in order, and combines at once whatever is complete, holds a
// stack of the maximal subtrees so far. `next` follows those of [begin, next.begin): returns with how many of them,
// newest first, it must be added. (The older one is always the left operand.)
size_t additions_after(uint32_t leaves, uint32_t begin, const Subtree& next);

// The run of `member` when `members` share `leaves` as evenly as possible: the first ones get one more; with fewer
// leaves than members the last ones get none.
LeafRun even_run(uint32_t leaves, size_t member, size_t members);

}  // namespace keepstep::comm
