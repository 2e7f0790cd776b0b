// The canonical tree over the leaves of a sum: in which order they are added, whoever adds them. Pure.
//
// Floating-point addition rounds, so a sum's bits follow from where its brackets are. Here they are a property of the
// number of leaves alone: a tree over one leaf is that leaf; a tree over n > 1 leaves has the largest power of two
// below n of them on its left and the rest on its right (the shape of RFC 6962's Merkle trees). Then
//   - leaves [k*2^j, (k+1)*2^j) are a subtree wherever they lie, so who adds leaves as they come, like carries of a
//     binary counter, needs to know the tree's size only for its right edge;
//   - any contiguous run of leaves is at most 2 * bit_width(n) - 2 whole subtrees. Their sums are all that others must
//     know of it, and the number of owners of runs changes no bracket.
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

// Empty when 0 <= begin <= end <= leaves and 1 <= leaves <= kMaxLeaves; else why not.
inline constexpr uint32_t kMaxLeaves = 1U << 24;
std::string why_not(const LeafRun& run);

// The fewest subtrees that make up `run`, in the order of their leaves; how many they are; and how many at most for any
// run of such a tree. `run` must be valid.
std::vector<Subtree> maximal_subtrees(const LeafRun& run);
size_t count_maximal_subtrees(const LeafRun& run);
size_t most_maximal_subtrees(uint32_t leaves);

// Who adds leaves or whole subtrees of `run` in order, and adds at once what is complete, holds the maximal subtrees of
// what came so far, like a stack. `next` comes after those of [begin, next.begin): with how many of them, newest first,
// is it to be added? (Each time the older one is the left operand.)
size_t additions_after(uint32_t leaves, uint32_t begin, const Subtree& next);

// The run of `member` where `members` share `leaves` as evenly as can be: the first ones get one more; with fewer
// leaves than members the last ones get none.
LeafRun even_run(uint32_t leaves, size_t member, size_t members);

}  // namespace keepstep::comm
