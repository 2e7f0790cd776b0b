// Ranks that make less progress than others (docs/design/stragglers.md). An agent gathers its ranks' reports about
// their steps and sends the medians to node 0's agent, which judges all nodes and reports the slow ranks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "agent/parts/core.h"
#include "brain/detect/stragglers.h"
#include "rank/link/log_ring.h"

namespace keepstep::agent {

class Pace {
 public:
  explicit Pace(AgentCore& core) : core_(core) {}

  void note(brain::Rank rank, const rank::CommitRecord& record);
  void watch();
  // A report to node 0. INVALID_ARGUMENT: it is about ranks that are not on that node.
  Status on_report(brain::NodeId from, const messages::Paces& report);
  nlohmann::json describe() const;
  std::string in_words() const;  // which ranks slow the job down; empty if none

 private:
  void on_paces(brain::Identity identity, const std::vector<brain::RankPace>& paces);

  AgentCore& core_;
  brain::StepWindow window_;
  brain::StragglerDetector detector_;  // node 0
};

}  // namespace keepstep::agent
