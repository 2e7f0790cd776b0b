// Sharded state, where no rank holds what another one has: which version is whole after a fault. Pure.
//
// Follows docs/design/sharded.md. Each rank's shard is copied between its update to k and its vote on k+1, so that
// whoever voted on k+1 has a copy of k. A rank that dies in between takes k along: then the job goes back to k-1, which
// everybody's copies hold until k+1 is decided. Where copies are made of every N-th version only, it is the newest of
// these, and at most N steps are done again. Parity blocks of groups of ranks, in place of copies on other nodes,
// follow the same rule.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/commit/step_commit.h"
#include "brain/copies/parity_rebuild.h"
#include "brain/types.h"

namespace keepstep::brain {

// How the state is divided: among so many ranks, as generation `number` dealt them out. Another number of ranks, or a
// survivor with another rank, makes another one.
struct Sharding {
  uint32_t number = 0;
  Rank world = 0;
  bool operator==(const Sharding&) const = default;
};

// A whole copy of the shard of `rank`, in the memory of a node.
struct ShardCopy {
  Rank rank = 0;
  Version version = 0;
  uint32_t sharding = 0;  // its number
  auto operator<=>(const ShardCopy&) const = default;
};

// `verdict` (step_commit.h) over generation `identity`, or the newest version before it of which each rank's shard is
// left: in its own process (`living`, the words of those that live), in one of `copies` of this sharding, or in what
// these and `parity` have of its group, if that is enough. Version `origin` is what a fresh process builds or loads.
// Nothing: no version is whole; `missing` (may be null) then says whose shard of which version is gone.
std::optional<Verdict> newest_whole(const Verdict& verdict, Identity identity, Version origin, const Sharding& sharding,
                                    const std::vector<SealedWord>& living, const std::set<ShardCopy>& copies,
                                    const std::set<ParityCopy>& parity, std::string* missing);

}  // namespace keepstep::brain
