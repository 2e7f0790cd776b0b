// Which blocks a lost shard is rebuilt from, where parity groups protect sharded state (parity_placement.h). Pure.
//
// A parity block records which ranks' shards it covers, and in which order, so blocks made before a change of the
// placement remain valid.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Row `row` of the parity of these ranks' shards (state/vault/reed_solomon.h): block members.size() + row of their
// code.
struct ParityBlock {
  std::vector<Rank> members;  // shard i of the code belongs to members[i]; 1 to 254 of them
  uint32_t row = 0;
  auto operator<=>(const ParityBlock&) const = default;
};

// Whether a code can have this block: it has members, none appears twice, and the code's field has that row.
bool is_possible(const ParityBlock& block);

// A whole parity block of a version in the memory of a node.
struct ParityCopy {
  ParityBlock block;
  Version version = 0;
  auto operator<=>(const ParityCopy&) const = default;
};

// How a lost shard is rebuilt: from any of its group's blocks, as many as the group has members.
struct Rebuild {
  struct Source {
    uint32_t block = 0;  // of the code: a member's shard, or members.size() + a parity row
    Rank giver = 0;
    bool operator==(const Source&) const = default;
  };
  std::vector<Rank> members;
  std::vector<Source> sources;  // by block; the last one is parity
  bool operator==(const Rebuild&) const = default;
};

// Plans for the shard of `lost`. `shards` and `parity` are all of one version, each with the rank that can give it.
// Shards are preferred, as they need no arithmetic. std::nullopt if too few blocks are left.
std::optional<Rebuild> plan_rebuild(Rank lost, const std::map<Rank, Rank>& shards,
                                    const std::map<ParityBlock, Rank>& parity);

}  // namespace keepstep::brain
