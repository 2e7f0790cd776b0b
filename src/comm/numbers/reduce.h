// Element-wise reductions in a fixed order. Pure functions over memory; results do not depend on how a caller splits
// data.
//
// float16 and bfloat16 are accumulated in float32 and rounded once. kAverage is the sum divided by the number of
// sources; for integers (but not bool) it rounds towards zero, like NCCL. Integers wrap. Minimum and maximum propagate
// NaN, like torch. For bool, sum, max and bor are "or"; product, min and band are "and"; the result is 0 or 1.
#pragma once

#include <cstddef>
#include <string>

#include "keepstep/types.h"

namespace keepstep::comm {

size_t size_of(DataType type);
const char* name(DataType type);
const char* name(ReduceOp op);

// Empty if `op` is defined for `type`; else why not, and what to use instead.
std::string why_not(DataType type, ReduceOp op);

// destination[i] = (((sources[0][i] op sources[1][i]) op sources[2][i]) ...) for i < count, in this order.
// `sources` (>= 1) must not overlap the destination; all are aligned to the element. why_not() must be empty.
void reduce_in_order(std::byte* destination, const std::byte* const* sources, size_t source_count, size_t count,
                     DataType type, ReduceOp op);

}  // namespace keepstep::comm
