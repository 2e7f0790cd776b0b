// Finds the agent of this node, and starts it if there is none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "rank/link/node_link.h"

namespace keepstep::rank {

// The numeric addresses of all nodes' agents, with commas, and the place of this node's.
struct NodeAddresses {
  std::string addresses;
  uint32_t self = 0;
};

// A new link to the agent that serves `job` on this machine; starts one with `command` ("keepstep", or a path) if there
// is none. `nodes`: if the job has several. The agent is not a child of this process and ends after its last rank.
// NOT_FOUND if `command` cannot be started; UNAVAILABLE if its agent does not answer.
StatusOr<std::unique_ptr<NodeLink>> connect_or_start(const std::string& job, const std::string& command,
                                                     const std::optional<NodeAddresses>& nodes = std::nullopt);

}  // namespace keepstep::rank
