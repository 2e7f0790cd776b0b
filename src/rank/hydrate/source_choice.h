// Which sources a target asks for its state, if there are more than it needs. Pure.
//
// Each remote source costs a target a thread, connections and buffers for its answers, and each target costs a source
// as much, so in a large job nobody asks all sources. Both sides compute the same choice: a remote source serves only
// the targets that chose it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace keepstep::rank {

inline constexpr size_t kMaxSourcesElsewhere = 8;

// The `sources` that `target` asks, in their order: all on its own node, and at most kMaxSourcesElsewhere on other
// nodes. Targets with consecutive ranks begin with different sources, which spreads the load. `nodes`: by rank; empty:
// all ranks are on one node. Ranks beyond it count as remote.
std::vector<uint32_t> sources_for(uint32_t target, const std::vector<uint32_t>& sources,
                                  const std::vector<uint32_t>& nodes);

}  // namespace keepstep::rank
