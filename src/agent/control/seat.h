// The number of a node that was started without one: asked for before the agent is made, and kept until it attends.
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

inline constexpr std::chrono::seconds kOneTry{10};  // to attend; a signal is looked for between two

// Asks for a place (`any`, or one that has a number) by `connect`. Where another node has it, which may just be lost,
// or nobody answers (a coordinator may be paused, or busy with a flood of strangers), again and again for `timeout_s`,
// --join-timeout; `say` is told once. CANCELLED: `pause`, a second or a signal long, saw one. Else as `connect`.
StatusOr<std::unique_ptr<CoordinatorLink>> ask_for_place(
    bool any, double timeout_s, const std::function<StatusOr<std::unique_ptr<CoordinatorLink>>()>& connect,
    const std::function<bool()>& pause, const std::function<void(const std::string&)>& say);

// A link whose node() is the number; it is ours until the agent of that number attends, and free again if this is
// closed before. It is asked for as above. RESOURCE_EXHAUSTED: who has them all. CANCELLED when one of `signals`
// (blocked by the caller) comes; `got` is its number.
StatusOr<std::unique_ptr<CoordinatorLink>> take_seat(const std::string& coordinator, const std::string& node_name,
                                                     const net::SharedKey& key, std::chrono::milliseconds timeout,
                                                     const sigset_t& signals, int& got,
                                                     const std::function<void(const std::string&)>& say);

}  // namespace keepstep::agent
