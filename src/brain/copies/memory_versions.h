// What the agents of a job hold of its state in memory, version by version, as `keepstep ckpt` shows it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "brain/copies/parity_rebuild.h"
#include "brain/copies/shard_copies.h"
#include "brain/types.h"

namespace keepstep::brain {

// A whole copy or a whole parity block of one version, in the memory of a node.
struct Holding {
  NodeId node = 0;
  uint32_t sharding = 0;  // its number
  Version version = 0;
  std::variant<Rank, ParityBlock> what;  // the rank whose shard this is, or the block
  uint64_t bytes = 0;
  int64_t age_ns = 0;  // since it became whole
  bool operator==(const Holding&) const = default;
};

struct MemoryVersion {
  Version version = 0;
  Sharding sharding;
  std::vector<Rank> lost;     // their shards have no copy and no parity to rebuild from; empty: version complete
  std::vector<NodeId> nodes;  // those that hold part of it, ascending
  uint64_t bytes = 0;         // one copy of each shard that has any
  uint64_t held_bytes = 0;    // all copies and blocks
  uint32_t copies = 0;        // nodes with a copy of the shard that has the fewest
  uint32_t parity = 0;        // blocks that protect the shard with the fewest
  int64_t age_ns = 0;         // of the oldest holding
  bool operator==(const MemoryVersion&) const = default;
};

// Newest first; within a version, the newer sharding first. Leaves out what belongs to none of `shardings`, or to a
// rank that its sharding does not have.
std::vector<MemoryVersion> versions_in_memory(std::span<const Holding> holdings, std::span<const Sharding> shardings);

}  // namespace keepstep::brain
