// Finding the agent of this node, and starting it where there is none.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "rank/link/node_link.h"

namespace keepstep::rank {

// A new link to the agent that serves `job` on this machine; starts one by `command` ("keepstep", or a path) if there
// is none. The agent is nobody's child and ends after its last rank. NOT_FOUND when `command` cannot be started;
// UNAVAILABLE when its agent does not answer.
StatusOr<std::unique_ptr<NodeLink>> connect_or_start(const std::string& job, const std::string& command);

}  // namespace keepstep::rank
