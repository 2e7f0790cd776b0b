// Seeds for random numbers, derived from what they belong to: (seed, step, rank), (seed, step, micro-batch).
//
// Bit-exact forever, like the order of samples: a redone step must draw the same numbers. Any thread.
#pragma once

#include <cstdint>
#include <span>

namespace keepstep::data {

// 64 bits that depend on all `parts`, in order: value = finalizer(value + part + 0x9e3779b97f4a7c15) for each part,
// starting from 0, with the finalizer of SplitMix64 (sample_order.h). No parts: 0.
uint64_t mix_seed(std::span<const uint64_t> parts);

}  // namespace keepstep::data
