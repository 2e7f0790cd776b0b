// The options of `keepstep run` that make a job elastic, parsed into agent::JobSpec.
#pragma once

#include <string>
#include <vector>

#include "agent/job/elastic_values.h"
#include "agent/job/job_spec.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

// `spec` already has its nodes (nnodes, max_nodes, spare_nodes) and nproc_per_node. Sets `elastic` and
// `ranks_per_replica` if the nodes are a range or one of these options was given; `elastic` also if they are wrong, so
// the other options are checked against it. Appends mistakes, one sentence each, naming the option.
void read_elastic_options(const RunTokens& tokens, agent::JobSpec& spec, std::vector<std::string>& mistakes);

// --elastic-policy FILE, also used for `keepstep scale --policy`. `option`: named in the mistakes.
agent::PolicyValues read_policy_file(const std::string& file, const std::string& option,
                                     std::vector<std::string>& mistakes);

}  // namespace keepstep::cli
