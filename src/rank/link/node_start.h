// Finds the agent of this node, and starts it if there is none.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "rank/link/node_link.h"

namespace keepstep::rank {

// A new link to the agent that serves `job` on this machine; starts one with `command` ("keepstep", or a path) if there
// is none. The agent is not a child of this process and ends after its last rank. NOT_FOUND if `command` cannot be
// started; UNAVAILABLE if its agent does not answer.
StatusOr<std::unique_ptr<NodeLink>> connect_or_start(const std::string& job, const std::string& command);

}  // namespace keepstep::rank
