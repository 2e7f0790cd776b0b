#include "cli/options/elastic_options.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/options/run_values.h"

namespace keepstep::cli {
namespace {

using agent::JobSpec;
using agent::PolicyName;
using agent::PolicyValues;

constexpr const char* kFileOption = "elastic-policy";

// The policy's messages name values as its file does. Here each gets the name the user gave, or could have given.
std::string as_given(std::string text, const PolicyValues& in_file, const std::string& file) {
  bool of_file = false;
  for (const auto& [brains, name] :
       {std::pair{"the minimum time between changes", "minChangeIntervalInSeconds"},
        std::pair{"the longest backoff", "maxBackoffInSeconds"}, std::pair{"the backoff factor", "backoffFactor"}}) {
    text = absl::StrReplaceAll(text, {{brains, name}});
  }
  for (const PolicyName& known : agent::policy_names()) {
    if (in_file.contains(known.name)) {
      of_file |= text.find(known.name) != std::string::npos;
    } else {
      text = absl::StrReplaceAll(text, {{known.name, absl::StrFormat("--%s", known.option)}});
    }
  }
  return of_file ? file + ": " + text : text;
}

void read_ranks_per_replica(const RunTokens& tokens, JobSpec& spec, std::vector<std::string>& mistakes) {
  spec.ranks_per_replica = spec.nproc_per_node;
  const auto given = tokens.last("ranks-per-replica");
  if (!given) {
    return;
  }
  const uint32_t most = spec.max_nodes * spec.nproc_per_node;
  const auto ranks = integer_in<uint32_t>(given->value, 1, most);
  if (ranks && (spec.nproc_per_node % *ranks == 0 || *ranks % spec.nproc_per_node == 0)) {
    spec.ranks_per_replica = *ranks;
    return;
  }
  mistakes.push_back(
      absl::StrFormat("%s is '%s'; give a number from 1 to %d that divides --nproc-per-node (%d), for several replicas "
                      "on a node, or is "
                      "a multiple of it, for replicas of several nodes",
                      given->where, given->value, most, spec.nproc_per_node));
}

// Derives sizes that were not given from those that were, and from the nodes.
void default_sizes(const PolicyValues& given, const JobSpec& spec, brain::ElasticConfig& config) {
  const bool discrete = !config.discrete_values.empty();
  if (!given.contains("maxReplicas")) {
    config.max_replicas = discrete ? config.discrete_values.back() : agent::replicas_on(spec, spec.max_nodes);
  }
  if (!given.contains("minReplicas")) {
    config.min_replicas = discrete ? config.discrete_values.front()
                                   : std::min(std::max(agent::replicas_on(spec, spec.nnodes), 1u), config.max_replicas);
  }
}

}  // namespace

PolicyValues read_policy_file(const std::string& file, const std::string& option, std::vector<std::string>& mistakes) {
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file)) {
    mistakes.push_back(absl::StrFormat(
        "%s is '%s'; that file cannot be read; give a YAML file with minReplicas, maxReplicas and so on "
        "(docs/reference/elastic.md)",
        option, file));
    return {};
  }
  std::string text(agent::kMaxPolicyFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  agent::PolicyFile read = agent::parse_policy_file(text, file);
  mistakes.insert(mistakes.end(), read.mistakes.begin(), read.mistakes.end());
  return read.mistakes.empty() ? std::move(read.values) : PolicyValues{};
}

void read_elastic_options(const RunTokens& tokens, JobSpec& spec, std::vector<std::string>& mistakes) {
  bool asked_for = spec.max_nodes > spec.nnodes || tokens.has("ranks-per-replica") || tokens.has(kFileOption);
  for (const PolicyName& known : agent::policy_names()) {
    asked_for |= tokens.has(known.option);
  }
  if (!asked_for) {
    return;
  }
  brain::ElasticConfig& config = spec.elastic.emplace();
  const size_t before = mistakes.size();
  read_ranks_per_replica(tokens, spec, mistakes);
  std::string file;
  PolicyValues in_file;
  if (const auto given = tokens.last(kFileOption)) {
    file = given->value;
    in_file = read_policy_file(file, given->where, mistakes);
  }
  // Conflicts between values may only follow from invalid single values; times do not affect sizes.
  bool sizes_known = mistakes.size() == before;
  PolicyValues by_option;
  for (const PolicyName& known : agent::policy_names()) {
    const auto given = tokens.last(known.option);
    if (!given) {
      continue;
    }
    brain::ElasticConfig ignored;
    if (const std::string wrong = agent::set_policy_value(known.name, given->value, ignored); !wrong.empty()) {
      mistakes.push_back(absl::StrFormat("%s is '%s'; %s", given->where, given->value, wrong));
      sizes_known &= std::string_view(known.name).find("eplica") == std::string_view::npos;
    } else {
      by_option[known.name] = given->value;
    }
  }
  if (spec.spare_nodes > 0) {
    mistakes.push_back(absl::StrFormat(
        "--spare-nodes is '%d', and the job is elastic: nodes beyond what it uses wait anyway; leave it "
        "out, and give --nnodes MIN:MAX with room for them",
        spec.spare_nodes));
    spec.spare_nodes = 0;
  }
  agent::apply_policy_values(in_file, config);
  agent::apply_policy_values(by_option, config);
  for (const auto& [name, text] : by_option) {
    in_file.erase(name);
  }
  PolicyValues given = in_file;
  given.insert(by_option.begin(), by_option.end());
  default_sizes(given, spec, config);
  if (!sizes_known) {
    return;
  }
  const size_t alone = mistakes.size();
  for (const std::string& mistake : agent::policy_mistakes(spec, config)) {
    mistakes.push_back(as_given(mistake, in_file, file));
  }
  if (mistakes.size() > alone) {
    return;
  }
  const uint32_t smallest = brain::ElasticPolicy(config).smallest_allowed(1);
  if (const uint32_t at_start = agent::replicas_on(spec, spec.nnodes); at_start < smallest) {
    mistakes.push_back(absl::StrFormat(
        "the job is to start with %d node%s, which hold %d replicas of %d ranks, and %d is the smallest "
        "size: give --nnodes MIN:MAX with more nodes as MIN, or fewer --min-replicas",
        spec.nnodes, spec.nnodes == 1 ? "" : "s", at_start, spec.ranks_per_replica, smallest));
  }
}

}  // namespace keepstep::cli
