// The canonical-tree all-reduce: every rank hands in the sums of its maximal subtrees, and every element is added in
// the tree's order, so that the result has the same bits for every number of ranks and every way to share the leaves.
//
// A collective like those of collectives.h, over the slots of a group's members, a chunk at a time, under the rule in
// layout.h. The first meeting compares the calls (tree and size included) and shows each rank's run and weight; meeting
// m shares the partial sums of chunk m and the finished parts of chunk m-1. Of a chunk each rank adds an equal part.
// How many elements a chunk has follows from the most partial sums that a rank brings: for the first chunk, when runs
// are not known yet, from the tree's bound for it. Small sums are added by every rank after that first meeting.
#pragma once

#include <string>

#include "comm/collectives/collective_run.h"
#include "comm/operation.h"

namespace keepstep::comm {

// What is wrong with this rank's own arguments; empty when nothing is.
std::string why_refused_canonical(const Operation& operation);

// Carries out an operation of kind kAllReduceCanonical whose arguments are good, the one of `run`, in its group.
void canonical_all_reduce(CollectiveRun& run, const Group& group, const Operation& operation);

}  // namespace keepstep::comm
