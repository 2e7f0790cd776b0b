#include "agent/parts/worker_variables.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "agent/workers/ports.h"

namespace keepstep::agent {

nlohmann::json WorkerVariables::of_job() const {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  nlohmann::json variables = as_json(job_environment(core_.config.spec, threads != nullptr));
  if (threads != nullptr) {
    variables["OMP_NUM_THREADS"] = threads;  // the zygote runs with one thread; its children may use more
  }
  for (const char* name : {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      variables[name] = value;
    }
  }
  if (!temp_.path().empty()) {
    variables["KEEPSTEP_TEMP"] = temp_.path().string();
  }
  return variables;
}

nlohmann::json as_json(const Environment& environment) {
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [name, value] : environment) {
    result[name] = value;
  }
  return result;
}

std::vector<std::string> WorkerVariables::names_of_rank() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : rank_environment(core_.config.spec, RankAssignment{})) {
    names.push_back(name);
  }
  return names;
}

void WorkerVariables::choose_master(const brain::Prepare& prepare) {
  master_addr_ = core_.config.spec.master_addr;
  master_port_ = core_.config.spec.master_port;
  if (core_.config.spec.several_nodes()) {
    const brain::RankTable::Entry& first = prepare.table.entries().front();
    if (master_addr_.empty()) {
      master_addr_ = text_of(first.endpoint.address);
    }
    if (master_port_ == 0) {
      master_port_ = static_cast<uint16_t>(first.endpoint.port_base + core_.config.spec.nproc_per_node +
                                           prepare.identity.generation % kMasterPorts);
    }
  } else if (master_port_ == 0) {
    master_port_ = free_port();
  }
}

Environment WorkerVariables::of_rank(brain::Rank rank) const {
  const brain::Prepare& prepare = *core_.brain.prepared();
  const brain::RankTable::Location location = prepare.table.locate(rank);
  RankAssignment assignment;
  assignment.rank = rank;
  assignment.local_rank = location.local_rank;
  const std::vector<brain::NodeId> nodes = nodes_of(prepare.table);
  assignment.group_rank = static_cast<uint32_t>(std::ranges::find(nodes, location.node) - nodes.begin());
  assignment.world = prepare.table.world_size();
  assignment.local_world = static_cast<uint32_t>(prepare.members.size());
  assignment.groups = static_cast<uint32_t>(nodes.size());
  assignment.generation = prepare.identity.generation;
  assignment.restarts = prepare.restarts;
  assignment.master_addr = master_addr_;
  assignment.master_port = master_port_;
  return rank_environment(core_.config.spec, assignment);
}

}  // namespace keepstep::agent
