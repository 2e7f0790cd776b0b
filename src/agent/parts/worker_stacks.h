// What this node's workers are in the middle of: a word of each, or their stacks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "agent/parts/core.h"
#include "agent/watch/stacks.h"

namespace keepstep::agent {

// As its page says.
RankFacts facts_of(const AgentCore& core, const WorkerProcess& process);
// `done` is called by the loop, or at once where stacks cannot be taken.
void take_stacks_of(const AgentCore& core, const std::vector<std::shared_ptr<WorkerProcess>>& processes,
                    const StackLimits& limits, std::function<void(StatusOr<std::vector<RankStacks>>)> done);

}  // namespace keepstep::agent
