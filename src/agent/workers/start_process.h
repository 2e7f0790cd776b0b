// Starts a process of the agent's own: without its signal mask, in a process group of its own, so that Ctrl-C in the
// terminal is the launcher's to handle.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace keepstep::agent {

// Descriptors 0-2 and those in `inherit` (as they are numbered there; the same number twice: it stays open); everything
// else of ours is close-on-exec. `extra_environment`: "NAME=value", in the place of what we have under that name.
// `blocked`: signals that it begins with blocked, for it to say what they do before one of them ends it.
StatusOr<pid_t> start_process(const std::vector<std::string>& argv, const std::vector<std::pair<int, int>>& inherit,
                              const std::vector<std::string>& extra_environment, const std::vector<int>& blocked = {});

}  // namespace keepstep::agent
