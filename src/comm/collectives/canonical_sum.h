// Sums in the order of the canonical tree: of the leaves of one rank as they arrive, and of the ranks' partial sums.
//
// Leaves are float32, float64, float16 or bfloat16. Sums of the last two are float32 (`sum_type`); a result is rounded
// to its own type once, at the end. Every addition is `older + newer`, no sum starts from zero, and the arithmetic is
// plain IEEE whatever the calling thread's settings (DefaultFloats in float_environment.h). So the bits depend only on
// the leaves and their number. (A NaN stays a NaN; its payload may differ.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/collectives/canonical_tree.h"
#include "comm/communicator.h"

namespace keepstep::comm {

// The type of sums of `type`. Types other than the four above have none; why_no_sum returns the error text for them.
DataType sum_type(DataType type);
std::string why_no_sum(DataType type);

// The sum of all leaves under one node of the tree.
struct PartialSum {
  Subtree leaves;
  const std::byte* data = nullptr;  // elements of the sum's type
};

// destination[i] = the tree sum of the parts' elements i, divided by `divisor` (in the sum's type; 0: not divided), as
// `type`. The parts are subtrees that make up the whole tree over `leaves`, in the order of their leaves. The
// destination must not overlap them.
void add_in_tree_order(std::byte* destination, DataType type, std::span<const PartialSum> parts, uint32_t leaves,
                       size_t count, uint64_t divisor);

// Adds up the leaves of a rank's run as they arrive: vectors of `count` elements, each in one piece or several.
//
// After k leaves it holds the sums of the maximal subtrees of these k: at most max_subtree_count() vectors (for an
// aligned run of n leaves, 1 + log2(n) while they arrive and one at the end). A leaf is added in one pass over memory,
// with all carries it causes. Vectors are allocated when first needed and kept for the next step. One thread at a time.
class CanonicalSum {
 public:
  // `type`: the leaves' type, one of the four above.
  CanonicalSum(size_t count, DataType type);
  CanonicalSum(CanonicalSum&&) = default;
  CanonicalSum& operator=(CanonicalSum&&) = default;

  // Starts over with the leaves of `run`. INVALID_ARGUMENT: `run` is invalid.
  Status begin(const LeafRun& run);

  // Adds elements [offset, offset + count) of the current leaf; null `values` means zeros. Once all elements of a leaf
  // were added, the next leaf becomes the current one. Each element must be added once per leaf (only their number is
  // checked). INVALID_ARGUMENT, with nothing added: beyond the vector's end, beyond the run's last leaf, or more
  // elements than are left of the leaf.
  Status add(size_t offset, const void* values, size_t count);

  const LeafRun& run() const { return run_; }
  size_t count() const { return count_; }
  DataType type() const { return type_; }
  uint32_t next_leaf() const { return leaf_; }  // run().end once complete
  bool complete() const { return leaf_ == run_.end; }
  // The sums of the run's maximal subtrees, in order, of type sum_type(type()); valid until the next begin(). Only once
  // complete().
  std::vector<const void*> partials() const;
  // Writes the whole sum, divided and rounded like in add_in_tree_order, as `type()`. FAILED_PRECONDITION: the run is
  // not the whole tree, or leaves are missing.
  Status write(void* destination, uint64_t divisor) const;
  size_t bytes() const;  // of memory held

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  size_t count_;
  DataType type_;
  LeafRun run_;
  uint32_t leaf_ = 0;     // the current one
  size_t given_ = 0;      // elements added of it
  size_t depth_ = 0;      // vectors in use before it
  size_t additions_ = 0;  // the additions that it causes
  std::vector<std::unique_ptr<std::byte[], Free>> vectors_;
};

}  // namespace keepstep::comm
