// Sums on their way from node to node: a node takes what came from those before, adds its ranks in order, passes it on.
// The last one finishes it. The bits are those of reduce_in_order over all ranks, wherever the nodes begin and end:
// what is accumulated in float32 travels as float32, an average is divided once at the end.
#pragma once

#include <cstddef>

#include "comm/communicator.h"

namespace keepstep::comm {

// Bytes of one element of a partial sum.
size_t partial_size(DataType type);

// partial[i] = ((before[i] op sources[0][i]) op sources[1][i]) ...; `before` null: begins with sources[0]. `partial`
// may be `before`, or the only source. Sources are of `type`, partial and before of its accumulated form.
void add_partial(std::byte* partial, const std::byte* before, const std::byte* const* sources, size_t source_count,
                 size_t count, DataType type, ReduceOp op);

// The same as the last step of `total` sources: rounds, divides. `destination` is of `type` and may be one of the
// sources.
void finish_partial(std::byte* destination, const std::byte* before, const std::byte* const* sources,
                    size_t source_count, size_t count, DataType type, ReduceOp op, size_t total);

}  // namespace keepstep::comm
