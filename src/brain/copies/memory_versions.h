// What the agents of a job hold of its state in their memory, version by version, as `keepstep ckpt` shows it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "brain/copies/parity_rebuild.h"
#include "brain/copies/shard_copies.h"
#include "brain/types.h"

namespace keepstep::brain {

// A whole copy, or a whole block of parity, of one version in the memory of a node.
struct Holding {
  NodeId node = 0;
  uint32_t sharding = 0;  // its number
  Version version = 0;
  std::variant<Rank, ParityBlock> what;  // whose shard it is
  uint64_t bytes = 0;
  int64_t age_ns = 0;  // since it became whole
  bool operator==(const Holding&) const = default;
};

struct MemoryVersion {
  Version version = 0;
  Sharding sharding;
  std::vector<Rank> lost;     // whose shard is in no copy and cannot be made of parity; empty: the version is complete
  std::vector<NodeId> nodes;  // that hold something of it, ascending
  uint64_t bytes = 0;         // of one copy of each shard that has any
  uint64_t held_bytes = 0;    // of all copies and blocks
  uint32_t copies = 0;        // nodes that have a copy, of the shard with the fewest
  uint32_t parity = 0;        // blocks that a shard is in, of the one in the fewest
  int64_t age_ns = 0;         // of what is the longest there
  bool operator==(const MemoryVersion&) const = default;
};

// The newest first; of one version the newer division first. What belongs to none of `shardings`, or to a rank that
// such a one does not have, is left out.
std::vector<MemoryVersion> versions_in_memory(std::span<const Holding> holdings, std::span<const Sharding> shardings);

}  // namespace keepstep::brain
