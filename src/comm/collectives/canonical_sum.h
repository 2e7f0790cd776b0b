// Sums in the order of the canonical tree: of the leaves that one rank owns, as they come, and of what the ranks hold.
//
// Leaves are float32, float64, float16 or bfloat16. Sums of the last two are float32 (`sum_type`); a result is rounded
// to its own type once, at the end. Every addition is `older + newer`, nothing starts from zero, and the arithmetic is
// the plain IEEE one whatever the calling thread set (DefaultFloats in float_environment.h): so the bits follow from
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

// The type of sums of `type`. What is not one of the four types above has none: then why_no_sum says so.
DataType sum_type(DataType type);
std::string why_no_sum(DataType type);

// The sum of some leaves: all under one node of the tree.
struct PartialSum {
  Subtree leaves;
  const std::byte* data = nullptr;  // elements of the sum's type
};

// destination[i] = tree sum of the parts' elements i, divided by `divisor` (in the sum's type; 0: not divided), as
// `type`. The parts are subtrees of a tree over `leaves` and make up all of it, in the order of their leaves. The
// destination must not overlap them.
void add_in_tree_order(std::byte* destination, DataType type, std::span<const PartialSum> parts, uint32_t leaves,
                       size_t count, uint64_t divisor);

// Adds up the leaves of a rank's run as they come: vectors of `count` elements, each in one piece or in several.
//
// What it holds after k leaves are the sums of the maximal subtrees of these k: at most most_maximal_subtrees() vectors
// (for an aligned run of n leaves 1 + log2(n) while they come, one at the end). A leaf is added to them in one pass
// over memory, with all carries it causes. Vectors are taken when first needed and kept for the next step. One thread
// at a time.
class CanonicalSum {
 public:
  // `type`: of the leaves, one of the four.
  CanonicalSum(size_t count, DataType type);
  CanonicalSum(CanonicalSum&&) = default;
  CanonicalSum& operator=(CanonicalSum&&) = default;

  // Begins anew with the leaves of `run`. INVALID_ARGUMENT when it is none.
  Status begin(const LeafRun& run);

  // Elements [offset, offset + count) of the current leaf; null: zeros. Once all elements of a leaf were given the next
  // leaf is the current one. Each element must be given once per leaf (only their number is checked).
  // INVALID_ARGUMENT, with nothing added: beyond the vector's end, beyond the run's last leaf, or more elements than
  // the leaf has left.
  Status add(size_t offset, const void* values, size_t count);

  const LeafRun& run() const { return run_; }
  size_t count() const { return count_; }
  DataType type() const { return type_; }
  uint32_t next_leaf() const { return leaf_; }  // run().end when complete
  bool complete() const { return leaf_ == run_.end; }
  // The sums of the run's maximal subtrees, in order, of sum_type(type()); valid until the next begin(). Only once
  // complete.
  std::vector<const void*> partials() const;
  // The whole sum, divided and rounded like add_in_tree_order's, as `type()`: where the run is the whole tree.
  // FAILED_PRECONDITION otherwise, or when leaves are missing.
  Status write(void* destination, uint64_t divisor) const;
  size_t bytes() const;  // memory held

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  size_t count_;
  DataType type_;
  LeafRun run_;
  uint32_t leaf_ = 0;     // the current one
  size_t given_ = 0;      // elements of it
  size_t depth_ = 0;      // vectors in use before it
  size_t additions_ = 0;  // that it causes
  std::vector<std::unique_ptr<std::byte[], Free>> vectors_;
};

}  // namespace keepstep::comm
