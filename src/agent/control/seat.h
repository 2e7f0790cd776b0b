// The number of a node that was started without one: requested before the agent is made, and reserved until it
// connects.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>

#include "agent/control/coordinator_link.h"
#include "base/status.h"
#include "net/shared_key.h"

namespace keepstep::agent {

inline constexpr std::chrono::seconds kOneTry{10};  // to connect; between two tries we check for a signal

// Asks for a place by `connect`: for any (`any`) or for one with a given number. Tries again for `timeout_s`
// (--join-timeout) while another node, perhaps just lost, has it, or nobody answers (a coordinator may be paused, or
// busy with a flood of strangers). Calls `say` once. CANCELLED: `pause`, which waits a second or until a signal
// arrives, saw one. Other errors are those of `connect`.
StatusOr<std::unique_ptr<CoordinatorLink>> ask_for_place(
    bool any, double timeout_s, const std::function<StatusOr<std::unique_ptr<CoordinatorLink>>()>& connect,
    const std::function<bool()>& pause, const std::function<void(const std::string&)>& say);

// A link whose node() is the number. It is ours until the agent of that number connects, and free again if the link is
// closed first. The wait and its errors are those of ask_for_place(). RESOURCE_EXHAUSTED says who has all the numbers.
// CANCELLED when one of `signals` (blocked by the caller) arrives; `got` is its number.
StatusOr<std::unique_ptr<CoordinatorLink>> take_seat(const std::string& coordinator, const std::string& node_name,
                                                     const net::SharedKey& key, std::chrono::milliseconds timeout,
                                                     const sigset_t& signals, int& got,
                                                     const std::function<void(const std::string&)>& say);

}  // namespace keepstep::agent
