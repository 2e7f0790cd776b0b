// The collectives: blocking, over the slots of a group's members, one chunk at a time.
//
// Every algorithm is a loop "fill my slots, meet, read the others' slots" and so follows the rules in layout.h. A chunk
// costs one meeting; a large all_reduce (reduce own slice, share it) is pipelined, so it too costs one per chunk, plus
// one at the end. The first meeting of an operation compares the ranks' calls.
#pragma once

#include <string>

#include "comm/operation.h"

namespace keepstep::comm {

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string error;
  bool link = false;               // for kFailed: a link to another node broke, here or at another member
  std::vector<Rank> missing = {};  // who had not arrived at the timeout, as ranks in the group
};

// Carries out one operation on the calling thread. One thread at a time per group; `group.entered` counts it.
Result run_collective(Group& group, const Operation& operation);

}  // namespace keepstep::comm
