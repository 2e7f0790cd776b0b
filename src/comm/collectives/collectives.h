// The collectives themselves: blocking, over the slots of a group's members, a chunk at a time.
//
// Every algorithm is a loop "fill my slots, meet, read the others' slots" and so follows the rule in layout.h. A chunk
// costs one meeting; a large all_reduce (reduce own slice, share it) is pipelined, so that it too costs one a chunk
// and one more at the end. The first meeting of an operation compares what the ranks called.
#pragma once

#include <string>

#include "comm/operation.h"

namespace keepstep::comm {

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string error;
  bool link = false;               // for kFailed: because a link to another node broke, here or at another member
  std::vector<Rank> missing = {};  // who had not come when time was over, as ranks in the group
};

// Carries out one operation on the calling thread. One thread at a time per group; `group.entered` counts it.
Result run_collective(Group& group, const Operation& operation);

}  // namespace keepstep::comm
