// The options of `keepstep run` that make a job elastic, from words to agent::JobSpec.
#pragma once

#include <string>
#include <vector>

#include "agent/job/elastic_values.h"
#include "agent/job/job_spec.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

// `spec` has its nodes (nnodes, max_nodes, spare_nodes) and nproc_per_node. Sets `elastic` and `ranks_per_replica` if
// the nodes are a range or one of the options is there; `elastic` also where they are wrong, so that the other options
// are judged by it. Mistakes are added, one sentence each, with the option that is meant.
void read_elastic_options(const RunTokens& tokens, agent::JobSpec& spec, std::vector<std::string>& mistakes);

// --elastic-policy FILE, here and for `keepstep scale --policy`. `option`: for the mistakes.
agent::PolicyValues read_policy_file(const std::string& file, const std::string& option,
                                     std::vector<std::string>& mistakes);

}  // namespace keepstep::cli
