// The policy of an elastic job (brain/elastic/elastic_policy.h) under the names that users of training operators know,
// read from text: a YAML file, options of `keepstep run`, `keepstep scale --set NAME=VALUE`, requests at the control
// door. Pure.
//
//   minReplicas: 2                        # or all of it below one key, `elasticPolicy`, as in an operator's job
//   maxReplicas: 8
//   replicaIncrementStep: 2               # or replicaDiscreteValues: [2, 4, 8]
//   scalingTimeoutInSeconds: 30
//   gracefulShutdownTimeoutInSeconds: 120
//   faultyScaleDownTimeoutInSeconds: 30
//   scaleUpSnoozeTimeInSeconds: 120
//   minChangeIntervalInSeconds: 60
//   backoffFactor: 2
//   maxBackoffInSeconds: 1800
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/job/job_spec.h"
#include "brain/elastic/elastic_policy.h"

namespace keepstep::agent {

struct PolicyName {
  const char* name;    // "minReplicas"
  const char* option;  // of `keepstep run`: "min-replicas"
};
std::span<const PolicyName> policy_names();

inline constexpr size_t kMaxPolicyFileBytes = 64 << 10;
inline constexpr size_t kMaxDiscreteValues = 1024;  // must fit into one request at the control door

// By name, as text; sizes are separated by commas. Values that are absent stay as they are.
using PolicyValues = std::map<std::string, std::string>;

// Sets one value in `config`. Returns "", or what to give instead ("give a number from 1 to 65536") and leaves `config`
// unchanged. `name` is one of policy_names().
std::string set_policy_value(const std::string& name, const std::string& text, brain::ElasticConfig& config);

// Applies all of `values`, each of which set_policy_value() accepts. Steps and discrete values are alternatives: if
// only one of them is given, it replaces the other.
void apply_policy_values(const PolicyValues& values, brain::ElasticConfig& config);

// What is wrong with values given as NAME=VALUE or at the door, one sentence each.
std::vector<std::string> policy_value_mistakes(const PolicyValues& values);

struct PolicyFile {
  PolicyValues values;
  std::vector<std::string> mistakes;  // all, each "FILE:LINE: what, and what to do"; if any, use no value
};
// `file`: the file's name, for the mistakes.
PolicyFile parse_policy_file(const std::string& text, const std::string& file);

// The values of `config` by name, in the form parse_policy_file() reads.
PolicyValues policy_values(const brain::ElasticConfig& config);

// The number of replicas that fit on `nodes` nodes. A replica that spans several nodes uses whole nodes.
uint32_t replicas_on(const JobSpec& spec, uint32_t nodes);

// What brain::mistakes() finds, and sizes that the nodes of `spec` cannot hold. Empty if the job can have this policy.
std::vector<std::string> policy_mistakes(const JobSpec& spec, const brain::ElasticConfig& config);

}  // namespace keepstep::agent
