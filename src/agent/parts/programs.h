// Programs of --no-python: whether those of this job attach, and so can wait for a rank and be replaced. If one
// attaches, all will, here and on other nodes.
#pragma once

#include <functional>
#include <memory>

#include "agent/parts/core.h"

namespace keepstep::agent {

class Programs {
 public:
  using Spawn = std::function<void(const std::shared_ptr<WorkerProcess>&)>;
  Programs(AgentCore& core, Spawn spawn) : core_(core), spawn_(std::move(spawn)) {}

  bool attach() const { return attach_; }
  void on_attached(const WorkerProcess& process);
  void on_attach();               // a program attached, here or on another node
  void tell(brain::NodeId node);  // node 0: tells it if a program attached

 private:
  AgentCore& core_;
  const Spawn spawn_;
  bool attach_ = false;
};

}  // namespace keepstep::agent
