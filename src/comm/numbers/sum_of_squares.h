// The squared norm of a vector, with bits that depend only on the vector. Pure.
#pragma once

#include <cstddef>

#include "keepstep/types.h"

namespace keepstep::comm {

// The sum of the squares of `count` elements of float32, float64, float16 or bfloat16, in float64 (where the squares of
// all but float64 are exact). The order is fixed, whatever vector registers or threads there are: within a block of
// 4096 elements, lane k of 8 adds elements k, k + 8, ... in order, lanes are added in pairs of neighbors, and blocks
// are the leaves of a canonical tree (canonical_tree.h).
double sum_of_squares(const void* values, size_t count, DataType type);

}  // namespace keepstep::comm
