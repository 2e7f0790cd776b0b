#include "agent/nodes/node_facts.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/checksum.h"

namespace keepstep::agent {
namespace {

// By its text: the same script may be at different paths. A module or a program is identified by its name.
std::string script_of(const JobSpec& spec) {
  if (spec.module || spec.no_python) {
    return absl::StrFormat("%s %s", spec.module ? "module" : "program", spec.script);
  }
  std::ifstream in(spec.script, std::ios::binary);
  const std::string text = (std::stringstream() << in.rdbuf()).str();
  return absl::StrFormat("%s with checksum %016x", spec.script.substr(spec.script.rfind('/') + 1),
                         checksum(text.data(), text.size()));
}

std::string shown(const messages::Texts& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "unknown" : found->second;
}

}  // namespace

messages::Texts node_facts(const JobSpec& spec, const std::string& version) {
  return {{"keepstep's version", version},
          {"the script", script_of(spec)},
          {"the script's arguments", absl::StrJoin(spec.script_args, " ")},
          {"--nnodes", spec.node_limit() == spec.nnodes ? std::to_string(spec.nnodes)
                                                        : absl::StrFormat("%d:%d", spec.nnodes, spec.node_limit())},
          {"the job's size (options of elastic jobs)", spec.elastic ? "elastic" : "fixed"},  // node 0 decides the rest
          {"--ranks-per-replica", std::to_string(spec.ranks_per_replica)},
          {"--spare-nodes", std::to_string(spec.spare_nodes)},
          {"--nproc-per-node", std::to_string(spec.nproc_per_node)},
          {"--spares", std::to_string(spec.spares)},
          {"--seed", std::to_string(spec.seed)},
          {"--check", spec.check_all_steps ? "on" : "off"},
          {"--digests", spec.digests},
          {"--digest-every", std::to_string(spec.digest_every)},
          {"--inject", absl::StrJoin(spec.inject, " ")},
          {"--clock-limit", absl::StrFormat("%g", spec.clock_limit_s)},
          {"--clocks-apart", spec.refuse_clocks_apart ? "refuse" : "warn"}};
}

std::vector<std::string> differences(const messages::Texts& first, const messages::Texts& other,
                                     const std::string& other_name) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : first) {
    if (!other.contains(name) || other.at(name) != value) {
      lines.push_back(absl::StrFormat("%s is '%s' on %s and '%s' on node 0", name, shown(other, name), other_name,
                                      shown(first, name)));
    }
  }
  return lines;
}

}  // namespace keepstep::agent
