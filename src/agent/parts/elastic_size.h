// The size of an elastic job, as its nodes' agents see it: a node that was told to leave hands its ranks' work over and
// ends, while the job goes on; `keepstep scale`, which node 0 answers.
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
  // True: `signal` told it to, and that is all that it means.
  bool leave_on(int signal);
  void leave_in_time();
  void parted() { leave_by_ns_ = 0; }  // what had ranks here goes on elsewhere, or is not needed any more
  // By node 0: the other nodes count their time to leave by themselves, and may have been started with another.
  void tell_grace(brain::NodeId to);
  void on_grace(brain::Time said);

  // ---- `keepstep scale` ----
  // As the control door hands it on: {"replicas": N or null}, or {"policy": {name: text}}.
  StatusOr<std::string> scale(const nlohmann::json& request);
  StatusOr<nlohmann::json> describe() const;
  nlohmann::json in_short() const;  // null: only node 0 knows, or it is not elastic

 private:
  void end_unparted(const char* what);
  StatusOr<std::string> scale_to(std::optional<uint32_t> replicas);
  StatusOr<std::string> change_policy(const PolicyValues& values);
  Status decides() const;
  uint32_t replicas() const;  // of the running generation

  AgentCore& core_;
  int64_t leave_by_ns_ = 0;     // this node was told to leave
  bool leave_at_once_ = false;  // by SIGTERM, so the next one does not wait
  brain::Time grace_{};         // what it gets then; node 0 says when that changes
  // Node 0: what the coordinator's policy was told, so that whoever asks for something impossible hears so.
  std::optional<brain::ElasticPolicy> policy_;
};

}  // namespace keepstep::agent
