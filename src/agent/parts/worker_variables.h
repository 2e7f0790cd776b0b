// The environment variables of workers: those that are the same for the whole job, and those that follow from a rank.
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
  // The names of the variables that follow from a rank.
  std::vector<std::string> names_of_rank() const;
  // Chooses MASTER_ADDR and MASTER_PORT when a generation begins. A store that a script opens itself at MASTER_PORT
  // must not meet the sockets of the previous generation. With several nodes all must choose the same port without
  // communication: the node of rank 0 reserves some ports after those of its ranks.
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
