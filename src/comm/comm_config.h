// How large a generation's memory is, and how to wake those who sleep in it: what agents and messages need to know of
// communicators (communicator.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "brain/types.h"

namespace keepstep::comm {

using brain::Rank;

using GroupId = uint32_t;
inline constexpr GroupId kWorld = 0;

struct CommConfig {
  uint32_t max_world = 16;              // ranks of a generation
  uint32_t max_local = 0;               // of these, the most on one node; 0: all
  uint32_t groups = 16;                 // groups that exist at one time, including the world
  size_t slot_bytes = 1 << 20;          // chunk size of the world group (two in, two out)
  size_t group_slot_bytes = 128 << 10;  // chunk size of each other group
  size_t ring_bytes = 128 << 10;        // one ring per ordered pair of ranks of a node
};
size_t arena_bytes(const CommConfig& config);
size_t generation_bytes(const CommConfig& config);
// Wakes all sleepers of this generation, after `*interrupted` was set. The agent calls it; anyone may.
void wake_all(const CommConfig& config, std::byte* generation);

}  // namespace keepstep::comm
