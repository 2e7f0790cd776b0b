// Starts a helper process of the agent: without the agent's signal mask, and in its own process group, so that the
// launcher handles Ctrl-C in the terminal.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace keepstep::agent {

// The process gets descriptors 0-2 and those in `inherit` (from our number to its number; if both are the same, it
// stays open); all our other descriptors are close-on-exec. `extra_environment`: "NAME=value", each replaces our
// variable of that name. `blocked`: signals that are blocked at first, until the process has decided what they do.
StatusOr<pid_t> start_process(const std::vector<std::string>& argv, const std::vector<std::pair<int, int>>& inherit,
                              const std::vector<std::string>& extra_environment, const std::vector<int>& blocked = {});

}  // namespace keepstep::agent
