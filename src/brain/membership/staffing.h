// Which workers are started where: the first ones, spares, and who gets a rank that has lost its worker. Pure.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

// A job of fixed size. Each node gets its share of consecutive ranks, by node id; the first ones one more where it does
// not divide.
void start_workers(Job& job);
// A rank without a worker gets a spare, or one that is started for it.
void fill(Job& job, Rank rank);
// As many as it is to have. `because`: for the journal.
void start_spares(Job& job, NodeId node, const std::string& because);
// On all nodes, but only once a step of this generation is done: a recovery must not share the CPU with spares that
// start. A node that loses them in a row is given up.
void keep_spares(Job& job);
// Where the newcomers of a generation come from, in a word for the journal.
const char* replaced_by(const Job& job, const std::vector<int64_t>& newcomers);

}  // namespace keepstep::brain
