// The number of a node that was started without one: asked for before the agent is made, and kept until it attends.
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include "agent/control/coordinator_link.h"
#include "base/status.h"
#include "net/shared_key.h"

namespace keepstep::agent {

// A link whose node() is the number; it is ours until the agent of that number attends, and free again if this is
// closed before. If all numbers are taken it is asked for again until `timeout`, because a node that was lost keeps its
// number for some seconds; `say` is told once. RESOURCE_EXHAUSTED then: who has them. CANCELLED when one of `signals`
// (blocked by the caller) comes; `got` is its number. Else as CoordinatorLink::connect.
StatusOr<std::unique_ptr<CoordinatorLink>> take_seat(const std::string& coordinator, const std::string& node_name,
                                                     const net::SharedKey& key, std::chrono::milliseconds timeout,
                                                     const sigset_t& signals, int& got,
                                                     const std::function<void(const std::string&)>& say);

}  // namespace keepstep::agent
