// Sums that travel from node to node: each node takes the sum of the previous nodes, adds its ranks in order, and
// passes it on; the last one finishes it. The bits are those of reduce_in_order over all ranks, however the ranks are
// split into nodes: what is accumulated in float32 is sent as float32, and an average is divided once, at the end.
#pragma once

#include <cstddef>

#include "keepstep/types.h"

namespace keepstep::comm {

// Bytes of one element of a partial sum.
size_t partial_size(DataType type);

// partial[i] = ((before[i] op sources[0][i]) op sources[1][i]) ...; if `before` is null, it begins with sources[0].
// `partial` may be `before`, or the only source. Sources are of `type`; `partial` and `before` are of its accumulated
// form.
void add_partial(std::byte* partial, const std::byte* before, const std::byte* const* sources, size_t source_count,
                 size_t count, DataType type, ReduceOp op);

// The same for the last step of `total` sources: also divides and rounds. `destination` is of `type` and may be one of
// the sources.
void finish_partial(std::byte* destination, const std::byte* before, const std::byte* const* sources,
                    size_t source_count, size_t count, DataType type, ReduceOp op, size_t total);

}  // namespace keepstep::comm
