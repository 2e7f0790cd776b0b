// What this node's workers are doing: in a word, or as their stacks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "agent/parts/core.h"
#include "agent/watch/stacks.h"

namespace keepstep::agent {

// From the worker's page.
RankFacts facts_of(const AgentCore& core, const WorkerProcess& process);
// `done` is called by the loop, or at once if stacks cannot be taken.
void take_stacks_of(const AgentCore& core, const std::vector<std::shared_ptr<WorkerProcess>>& processes,
                    const StackLimits& limits, std::function<void(StatusOr<std::vector<RankStacks>>)> done);

}  // namespace keepstep::agent
