// The canonical-tree all-reduce: every rank passes the sums of its maximal subtrees, and every element is added in the
// tree's order, so the result has the same bits for any number of ranks and any distribution of the leaves.
//
// A collective like those in collectives.h, over the slots of a group's members, chunk by chunk, under the rules in
// layout.h. The first meeting compares the calls (including tree and size) and shows each rank's run and weight;
// meeting m shares the partial sums of chunk m and the finished parts of chunk m-1. Each rank adds an equal part of a
// chunk. The number of elements in a chunk follows from the most partial sums that a rank contributes; for the first
// chunk, when runs are not known yet, from the tree's bound for it. Small sums are added by every rank right after the
// first meeting.
#pragma once

#include <string>

#include "comm/collectives/collective_run.h"
#include "comm/operation.h"

namespace keepstep::comm {

// What is wrong with this rank's own arguments; empty if nothing is.
std::string why_refused_canonical(const Operation& operation);

// Carries out the operation of `run` in its group: its kind is kAllReduceCanonical and its arguments are valid.
void canonical_all_reduce(CollectiveRun& run, const Group& group, const Operation& operation);

}  // namespace keepstep::comm
