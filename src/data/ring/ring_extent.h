// Where an item's bytes are in the ring's data memory; shared by writer and reader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "data/ring/ring_layout.h"

namespace keepstep::data {

inline constexpr uint64_t kRingAlignment = 64;  // of the state after the batch

// Sizes up to this can be added without overflow.
inline constexpr uint64_t kMaxItemBytes = uint64_t{1} << 46;

// Where the state begins, from the beginning of the item.
constexpr uint64_t state_offset(uint64_t batch_bytes) {
  return (batch_bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
}

// Whole pages: an item shares none with its neighbors, so that it can be mapped, and overwritten, alone.
constexpr uint64_t extent_bytes(uint64_t batch_bytes, uint64_t state_bytes) {
  return (state_offset(batch_bytes) + state_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Whether the extent in a slot is inside `data_bytes`.
constexpr bool inside(const RingSlot& slot, uint64_t data_bytes) {
  return slot.batch_bytes <= kMaxItemBytes && slot.state_bytes <= kMaxItemBytes && slot.offset <= data_bytes &&
         slot.offset % kPageBytes == 0 && extent_bytes(slot.batch_bytes, slot.state_bytes) <= data_bytes - slot.offset;
}

}  // namespace keepstep::data
