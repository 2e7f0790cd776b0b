// The words of the membership brain's reasons. Internal to src/brain/.
#pragma once

#include <string>
#include <vector>

#include "brain/membership_messages.h"
#include "brain/recovery_ladder.h"

namespace keepstep::brain {

inline std::string rank_text(Rank rank) { return "rank " + std::to_string(rank); }

// "rank 3 (pid 4711)", or "worker 5 (pid 4711)" without a rank.
std::string who_text(bool has_rank, Rank rank, WorkerId worker, int64_t pid);
// "was ended by SIGKILL", "exited with code 3", "is gone"
std::string how_text(const WorkerDied& event);
// "rank 0 yes on 118, clean at 117; ..."
std::string words_text(const std::vector<SealedWord>& words);
// "rank 1 (pid 7) failed at step 20: ValueError: x: raised at this step alone, and not by its redo"
std::string outlived_text(const OutlivedFailure& failure);
// "0.5 s"
std::string seconds_text(Time time);

}  // namespace keepstep::brain
