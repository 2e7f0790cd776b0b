// Texts shared by the reasons of all brains. Pure; internal to src/brain/.
#pragma once

#include <string>

#include "brain/types.h"

namespace keepstep::brain {

inline std::string rank_text(Rank rank) { return "rank " + std::to_string(rank); }

// "rank 3 (pid 4711)"; without a rank, "worker 5 (pid 4711)".
std::string who_text(bool has_rank, Rank rank, WorkerId worker, int64_t pid);
// "0.5 s"
std::string seconds_text(Time time);

}  // namespace keepstep::brain
