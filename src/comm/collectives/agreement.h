// Checks that all ranks of a group called the same operation, and words the errors if they did not or some are missing.
#pragma once

#include <span>
#include <string>

#include "comm/operation.h"

namespace keepstep::comm {

// What this rank publishes. `refused`: its arguments were invalid, so no rank may wait for it or compute with it.
Descriptor descriptor_of(const Operation& operation, bool refused);

// What is wrong with this rank's own arguments; empty if nothing is.
std::string why_refused(const Group& group, const Operation& operation);

// Call it after the first meeting. Empty, or which ranks called what. The text is the same on all ranks.
std::string disagreement(const Group& group);
// The same for what all members published, by group rank.
std::string disagreement(const Group& group, std::span<const Descriptor> descriptors);

// "all_reduce #17 of group world": the start of every error.
std::string title(const Group& group, const Operation& operation);
// "rank 2" or "ranks 2, 3": the world ranks of these group members.
std::string rank_list(const Group& group, std::span<const size_t> members);
// "5 s", "0.25 s".
std::string seconds(int64_t ns);

}  // namespace keepstep::comm
