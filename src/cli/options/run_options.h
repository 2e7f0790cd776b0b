// Turns the words after `keepstep run` into a checked JobSpec. Collects all mistakes instead of stopping at the first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/job/job_spec.h"
#include "base/status.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

// What the options are checked against, apart from files; current_surroundings() fills it in.
struct Surroundings {
  Environ environ;
  uint32_t cpus = 1;                                       // available to this process
  uint32_t gpus = 0;                                       // visible NVIDIA devices
  std::string path;                                        // $PATH, for --no-python
  StatusOr<std::string> python = absl::NotFoundError("");  // cli/options/find_python.h
};
Surroundings current_surroundings();

struct RunRequest {
  enum class Action { kRun, kHelp, kHelpMarkdown };
  Action action = Action::kRun;
  agent::JobSpec spec;                // for kRun
  std::vector<std::string> warnings;  // to be shown; the run continues
};

// INVALID_ARGUMENT: the message has one line per mistake, each with the option, its value and what to do. The caller
// prints it and exits with 2.
StatusOr<RunRequest> parse_run_options(const std::vector<std::string>& args, const Surroundings& surroundings);

}  // namespace keepstep::cli
