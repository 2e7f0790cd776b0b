// The size of an elastic job, as its nodes' agents see it. A node that is told to leave hands over its ranks' work and
// ends, while the job goes on. Node 0 answers `keepstep scale`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "agent/job/elastic_values.h"
#include "agent/parts/core.h"
#include "brain/elastic/elastic_policy.h"

namespace keepstep::agent {

class ElasticSize {
 public:
  explicit ElasticSize(AgentCore& core);

  // ---- this node leaves ----
  // True: `signal` told this node to leave, and has no other effect.
  bool leave_on(int signal);
  void leave_in_time();
  void parted() { leave_by_ns_ = 0; }  // the work of our ranks goes on elsewhere or is no longer needed
  // Node 0 sends its grace period: the other nodes measure it themselves, and may have been started with another.
  void tell_grace(brain::NodeId to);
  void on_grace(brain::Time said);

  // ---- `keepstep scale` ----
  // `request`: from the control door, {"replicas": N or null} or {"policy": {name: text}}.
  StatusOr<std::string> scale(const nlohmann::json& request);
  StatusOr<nlohmann::json> describe() const;
  nlohmann::json in_short() const;  // null if this is not node 0 or the job is not elastic

 private:
  void end_unparted(const char* what);
  StatusOr<std::string> scale_to(std::optional<uint32_t> replicas);
  StatusOr<std::string> change_policy(const PolicyValues& values);
  Status decides() const;
  uint32_t replicas() const;  // of the running generation

  AgentCore& core_;
  int64_t leave_by_ns_ = 0;     // when this node must be gone; 0 if not told to leave
  bool leave_at_once_ = false;  // told by SIGTERM; the next one ends the node at once
  brain::Time grace_{};         // the time to leave; node 0 sends changes
  // Node 0: a copy of the coordinator's policy, to answer impossible requests with an error.
  std::optional<brain::ElasticPolicy> policy_;
};

}  // namespace keepstep::agent
