// Which blocks a lost shard is rebuilt from, where parity groups protect sharded state (parity_placement.h). Pure.
//
// A parity block says itself of which ranks' shards it is, in which order: after a change of the placement those of
// before are as good as ever.
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
  std::vector<Rank> members;  // shard i of the code is that of members[i]; 1 to 254 of them
  uint32_t row = 0;
  auto operator<=>(const ParityBlock&) const = default;
};

// Whether a code can have it: there are members, none is there twice, and the row is one that the code's field has.
bool is_possible(const ParityBlock& block);

// A whole parity block of a version, in the memory of a node.
struct ParityCopy {
  ParityBlock block;
  Version version = 0;
  auto operator<=>(const ParityCopy&) const = default;
};

// How a lost shard comes back: out of any of its group's blocks, as many as the group has members.
struct Rebuild {
  struct Source {
    uint32_t block = 0;  // of the code: a member's shard, or members.size() + a row of parity
    Rank giver = 0;
    bool operator==(const Source&) const = default;
  };
  std::vector<Rank> members;
  std::vector<Source> sources;  // by block; the last one is parity
  bool operator==(const Rebuild&) const = default;
};

// For the shard of `lost`: `shards` and `parity`, all of one version, each with who can give it. Shards come first, as
// they need no arithmetic. Nothing where too few blocks are left.
std::optional<Rebuild> plan_rebuild(Rank lost, const std::map<Rank, Rank>& shards,
                                    const std::map<ParityBlock, Rank>& parity);

}  // namespace keepstep::brain
