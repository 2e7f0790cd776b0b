// `keepstep scale`: the size of a running elastic job.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/job/elastic_values.h"
#include "cli/commands/asked_job.h"

namespace keepstep::cli {

struct ScaleRequest {
  bool help = false;
  bool as_json = false;
  std::string job;  // empty: the only one
  KeyOptions key;
  bool to = false;                    // --to, of ...
  std::optional<uint32_t> replicas;   // ... so many; none: auto
  agent::PolicyValues policy;         // of --policy FILE and --set
  std::vector<std::string> mistakes;  // all of them; then nothing is to be asked
};
// Reads the words behind `keepstep scale`, and the file of --policy.
ScaleRequest parse_scale(const std::vector<std::string>& args);

// What `keepstep scale JOB` shows, from the launcher's answer. Throws nlohmann exceptions where that lacks something.
std::string size_as_text(const nlohmann::json& answer);

// Returns the exit code: 0 done; 1 no such job, or it refused; 2 wrong options.
int scale_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
