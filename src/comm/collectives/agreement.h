// Do all ranks of a group mean the same operation? And the words for when they do not, or do not come.
#pragma once

#include <span>
#include <string>

#include "comm/operation.h"

namespace keepstep::comm {

// What this rank publishes; `refused`: its arguments were no good, nobody must wait for it or compute with it.
Descriptor descriptor_of(const Operation& operation, bool refused);

// What is wrong with this rank's own arguments; empty when nothing is.
std::string why_refused(const Group& group, const Operation& operation);

// After the first meeting: empty, or which ranks called what. The text is the same on all ranks.
std::string disagreement(const Group& group);
// The same from what all members published, by group rank.
std::string disagreement(const Group& group, std::span<const Descriptor> descriptors);

// "all_reduce #17 of group world": leads every error.
std::string title(const Group& group, const Operation& operation);
// "rank 2" or "ranks 2, 3": world ranks of these group members.
std::string rank_list(const Group& group, std::span<const size_t> members);
// "5 s", "0.25 s".
std::string seconds(int64_t ns);

}  // namespace keepstep::comm
