// Sharded state, where no rank holds what another holds: which version is whole after a fault. Pure.
//
// Follows docs/design/sharded.md. Each rank's shard is copied between its update to k and its vote on k+1, so every
// rank that voted on k+1 has a copy of k. If a rank dies in between, k is lost with it: the job goes back to k-1, which
// all copies hold until k+1 is decided. If only every N-th version is copied, the job goes back to the newest of these
// and redoes at most N steps. Parity blocks of groups of ranks, in place of copies on other nodes, follow the same
// rule.
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

// How the state is divided: among `world` ranks, as generation `number` assigned it. Another number of ranks, or a
// survivor with another rank, makes a new sharding.
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

// `verdict` (step_commit.h) over generation `identity`, or else the newest version before it of which every rank's
// shard is left: in its own process (`living`, the words of living processes), in one of `copies` of this sharding, or
// rebuildable from these and the `parity` of its group. A fresh process builds or loads version `origin`. std::nullopt
// if no version is whole; `missing` (may be null) then says whose shard of which version is gone.
std::optional<Verdict> newest_whole(const Verdict& verdict, Identity identity, Version origin, const Sharding& sharding,
                                    const std::vector<SealedWord>& living, const std::set<ShardCopy>& copies,
                                    const std::set<ParityCopy>& parity, std::string* missing);

}  // namespace keepstep::brain
