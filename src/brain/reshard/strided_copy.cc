#include "brain/reshard/strided_copy.h"

#include <algorithm>

#include "brain/require.h"

namespace keepstep::brain {

uint64_t StridedCopy::runs() const {
  uint64_t count = run_bytes == 0 ? 0 : 1;
  for (const Loop& loop : loops) {
    count *= loop.count;
  }
  return count;
}

uint64_t StridedCopy::source_span() const {
  uint64_t span = run_bytes;
  for (const Loop& loop : loops) {
    span += (loop.count - 1) * loop.source_stride;
  }
  return runs() == 0 ? 0 : span;
}

StridedCopy strided_copy(const Box& source, const Box& target, const Box& part, uint32_t element_bytes) {
  StridedCopy copy;
  if (elements(part) == 0) {
    return copy;
  }
  require(contains(source, part) && contains(target, part), "a copy reaches beyond one of its shards");
  copy.run_bytes = element_bytes;
  uint64_t source_stride = element_bytes;  // of one index of the current dimension
  uint64_t target_stride = element_bytes;
  for (size_t dimension = part.dimensions(); dimension-- > 0;) {
    const uint64_t count = part.lengths[dimension];
    copy.source_offset += (part.offsets[dimension] - source.offsets[dimension]) * source_stride;
    copy.target_offset += (part.offsets[dimension] - target.offsets[dimension]) * target_stride;
    if (count > 1) {
      StridedCopy::Loop* inner = copy.loops.empty() ? nullptr : &copy.loops.back();
      if (inner == nullptr && source_stride == copy.run_bytes && target_stride == copy.run_bytes) {
        copy.run_bytes *= count;
      } else if (inner != nullptr && source_stride == inner->count * inner->source_stride &&
                 target_stride == inner->count * inner->target_stride) {
        inner->count *= count;
      } else {
        copy.loops.push_back({count, source_stride, target_stride});
      }
    }
    source_stride *= source.lengths[dimension];
    target_stride *= target.lengths[dimension];
  }
  std::reverse(copy.loops.begin(), copy.loops.end());
  return copy;
}

}  // namespace keepstep::brain
