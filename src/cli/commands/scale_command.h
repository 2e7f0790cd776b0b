// `keepstep scale`: shows or changes the size of a running elastic job.
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
  std::string job;  // empty: the only job
  KeyOptions key;
  bool to = false;                    // --to was given, with ...
  std::optional<uint32_t> replicas;   // ... this number of replicas; std::nullopt: auto
  agent::PolicyValues policy;         // from --policy FILE and --set
  std::vector<std::string> mistakes;  // all of them; if there are any, nothing may be asked
};
// Parses the words after `keepstep scale`, and the file given with --policy.
ScaleRequest parse_scale(const std::vector<std::string>& args);

// The output of `keepstep scale JOB`, from the launcher's answer. Throws nlohmann exceptions if the answer is
// incomplete.
std::string size_as_text(const nlohmann::json& answer);

// Returns the exit code: 0 done; 1 no such job, or it refused; 2 invalid options.
int scale_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
