// Which members of a group share a node, as seen by one member: the two levels of every collective across nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_config.h"

namespace keepstep::comm {

struct NodeMap {
  std::vector<std::vector<size_t>> members;  // by node, in order of their first members: ranks in the group, ascending
  size_t node = 0;                           // ours
  size_t local = 0;                          // our place among the members of our node
  bool contiguous = true;                    // each node's members are adjacent in the group

  // `group`: world ranks in group order; `nodes`: by world rank, empty if all are on one; `self`: our rank in the
  // group.
  NodeMap(std::span<const Rank> group, std::span<const uint32_t> nodes, size_t self);
  NodeMap() = default;

  bool across() const { return members.size() > 1; }
  size_t nodes() const { return members.size(); }
  const std::vector<size_t>& here() const { return members[node]; }
  bool leads() const { return local == 0; }
  // How many members of each node can share the work between nodes, each with its counterparts.
  size_t drivers() const;
  // The node of a member.
  size_t node_of(size_t member) const;
};

}  // namespace keepstep::comm
