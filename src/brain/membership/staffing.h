// Which workers are started where: the first ones, spares, and which worker gets a rank that lost its own. Pure.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

// For a job of fixed size. Each node gets its share of consecutive ranks, by node id; if they do not divide evenly, the
// first nodes get one more.
void start_workers(Job& job);
// A rank without a worker gets a spare, or a worker started for it.
void fill(Job& job, Rank rank);
// Starts as many as the node should have. `because`: for the journal.
void start_spares(Job& job, NodeId node, const std::string& because);
// Does so on all nodes, but only once a step of this generation is done: starting spares must not take CPU time from a
// recovery. A node that keeps losing them is given up.
void keep_spares(Job& job);
// Where the newcomers of a generation come from, as one word for the journal.
const char* replaced_by(const Job& job, const std::vector<int64_t>& newcomers);

}  // namespace keepstep::brain
