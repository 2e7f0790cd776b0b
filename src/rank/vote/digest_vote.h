// The digests of a step on the ranks of a node, combined into one value that nodes can pass on. Pure except that it
// reads the pages.
//
// A rank stores its digest in its page before it votes, so a reader who sees its vote also sees the digest. Ranks that
// stored none for the step do not affect the result.
#pragma once

#include <vector>

#include "brain/commit/digests.h"
#include "rank/link/page.h"

namespace keepstep::rank {

struct DigestSum {
  enum class Kind : uint32_t { kNone = 0, kSame = 1, kDiffer = 2 };
  Kind kind = Kind::kNone;
  brain::StepDigest digest;  // of kSame

  void add(const DigestSum& other);
};

// Over the pages in `members` that are not null.
DigestSum digests_of(const std::vector<const WorkerPage*>& members, brain::Step step);

}  // namespace keepstep::rank
