// The memory of this node in which shards outlive their processes; ranks get it on request.
#pragma once

#include <memory>

#include "agent/memory/shard_vaults.h"
#include "agent/memory/vault_maker.h"
#include "agent/parts/core.h"

namespace keepstep::agent {

class Vaults {
 public:
  explicit Vaults(AgentCore& core) : core_(core) {}
  void open() { maker_ = std::make_unique<VaultMaker>(core_.loop, all_); }  // once there is a loop

  ShardVaults& all() { return all_; }
  // If the memory has to be made first, the answer is sent later.
  void answer(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
              const messages::VaultQuestion& question);

 private:
  AgentCore& core_;
  ShardVaults all_;
  std::unique_ptr<VaultMaker> maker_;
};

}  // namespace keepstep::agent
