// Which sources a target asks for its state, where there are more than it needs. Pure.
//
// Each source elsewhere costs a target a thread, connections and buffers for its answers, and each target costs a
// source as much, so nobody asks all of a large job. Both sides compute the same choice: a source elsewhere serves
// those that chose it and no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace keepstep::rank {

inline constexpr size_t kMaxSourcesElsewhere = 8;

// Those of `sources` that `target` asks, in their order: all on its own node, and at most kMaxSourcesElsewhere of
// other nodes. Targets whose ranks follow one another begin with others, so that they share the sources out between
// them. `nodes`: by rank; empty: all ranks are on one node. Ranks beyond it are nobody's.
std::vector<uint32_t> sources_for(uint32_t target, const std::vector<uint32_t>& sources,
                                  const std::vector<uint32_t>& nodes);

}  // namespace keepstep::rank
