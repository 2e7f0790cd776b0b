// The tree over the nodes of a generation through which their leaders agree: who leads, who is above, who is below.
// Pure.
//
// A node's leader is its lowest rank. Nodes are in the order of their leaders, node i below node (i - 1) / kFanOut: two
// levels reach five nodes, three reach 21. The tree is never repaired: losing a node ends the generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "brain/types.h"

namespace keepstep::rank {

struct NodeTree {
  static constexpr size_t kFanOut = 4;

  struct Branch {
    brain::Rank leader = 0;
    std::vector<brain::Rank> ranks;  // of its node and of all nodes below it, ascending
  };

  // `nodes`: by rank, its node; at least one rank.
  NodeTree(const std::vector<uint32_t>& nodes, brain::Rank self);

  bool leads = false;     // `self` is its node's leader; the fields below describe that node's place
  bool root = false;      // nobody is above
  brain::Rank above = 0;  // the leader there; unset at the root
  std::vector<Branch> below;
  std::vector<brain::Rank> ranks;  // of this node and of all nodes below, ascending
};

}  // namespace keepstep::rank
