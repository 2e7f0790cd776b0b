// Problems that do not end a process: health checks, and rules about what workers print.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "agent/parts/core.h"
#include "agent/watch/health.h"

namespace keepstep::agent {

class NodeHealth {
 public:
  explicit NodeHealth(AgentCore& core) : core_(core) {}

  void start();
  void stop() { watch_.reset(); }
  void look();
  void apply_log_rules();
  // A worker failed its health check before it had a rank, and is about to exit.
  void on_unfit(const std::shared_ptr<WorkerProcess>& process, const messages::Unfit& unfit);
  void passed() { fitness_.passed(); }  // another worker passed

 private:
  void on_health(const HealthReading& reading);
  void say(std::vector<HealthFinding> findings);

  AgentCore& core_;
  NodeFitness fitness_;
  std::unique_ptr<HealthWatch> watch_;    // null if health checks are off
  std::optional<HealthReading> health_;   // the last one
  std::vector<HealthFinding> unhealthy_;  // as last reported
};

}  // namespace keepstep::agent
