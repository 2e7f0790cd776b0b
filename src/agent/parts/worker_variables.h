// What workers find in their environment: what all of the job have, and what follows from a rank.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "agent/parts/core.h"
#include "agent/workers/temp_folder.h"
#include "agent/workers/torchrun_env.h"

namespace keepstep::agent {

class WorkerVariables {
 public:
  WorkerVariables(AgentCore& core, const TempFolder& temp) : core_(core), temp_(temp) {}

  nlohmann::json of_job() const;
  // The names of those that follow from a rank.
  std::vector<std::string> names_of_rank() const;
  // A generation begins. A store that a script opens itself at MASTER_PORT must not meet the sockets of the one before.
  // With several nodes all must come to the same port without asking: the node of rank 0 keeps some behind those of its
  // ranks.
  void choose_master(const brain::Prepare& prepare);
  Environment of_rank(brain::Rank rank) const;

 private:
  AgentCore& core_;
  const TempFolder& temp_;
  std::string master_addr_;
  uint16_t master_port_ = 0;
};

nlohmann::json as_json(const Environment& environment);

}  // namespace keepstep::agent
