// Copies one part of a tensor from the memory of one shard to that of another: runs of bytes that are contiguous in
// both. Pure.
//
// A shard is stored without gaps, in row-major order of its own box.
#pragma once

#include <cstdint>
#include <vector>

#include "brain/reshard/box.h"

namespace keepstep::brain {

struct StridedCopy {
  struct Loop {
    uint64_t count = 0;
    uint64_t source_stride = 0;  // bytes
    uint64_t target_stride = 0;
    bool operator==(const Loop&) const = default;
  };
  uint64_t source_offset = 0;  // of the first run, in bytes from the start of the shard
  uint64_t target_offset = 0;
  uint64_t run_bytes = 0;   // as long as possible: rows that are adjacent on both sides form one run
  std::vector<Loop> loops;  // outermost first, as few as possible; none: a single run
  bool operator==(const StridedCopy&) const = default;

  uint64_t runs() const;
  uint64_t bytes() const { return runs() * run_bytes; }
  // From source_offset to the end of the last run there: what a single read must span to cover everything.
  uint64_t source_span() const;
};

// `part` is inside both boxes. Sizes in bytes must fit 64 bits.
StridedCopy strided_copy(const Box& source, const Box& target, const Box& part, uint32_t element_bytes);

// Calls visit(source_offset, target_offset, bytes) for each run, in ascending order of offsets.
template <typename Visit>
void each_run(const StridedCopy& copy, Visit visit) {
  std::vector<uint64_t> index(copy.loops.size(), 0);
  uint64_t source = copy.source_offset;
  uint64_t target = copy.target_offset;
  for (uint64_t run = copy.runs(); run > 0; --run) {
    visit(source, target, copy.run_bytes);
    for (size_t loop = copy.loops.size(); loop > 0; --loop) {
      const StridedCopy::Loop& at = copy.loops[loop - 1];
      source += at.source_stride;
      target += at.target_stride;
      if (++index[loop - 1] < at.count) {
        break;
      }
      index[loop - 1] = 0;
      source -= at.count * at.source_stride;
      target -= at.count * at.target_stride;
    }
  }
}

}  // namespace keepstep::brain
