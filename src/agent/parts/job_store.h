// This node's part of the job's Store (agent/store/shared_store.h): requests of its workers, and messages about it from
// other nodes' agents.
#pragma once

#include <vector>

#include "agent/parts/core.h"
#include "agent/store/shared_store.h"

namespace keepstep::agent {

class JobStore {
 public:
  explicit JobStore(AgentCore& core) : core_(core), store_(core.config.node) {}

  void ask(const WorkerProcess& process, const messages::StoreQuestion& question, std::vector<Fd> fds);
  template <typename Message>
  void on_message(brain::NodeId from, const Message& message) {
    carry_out(store_.on_message(from, message));
  }
  // A generation begins on these nodes.
  void set_homes(std::vector<brain::NodeId> nodes) { carry_out(store_.set_homes(std::move(nodes))); }
  void forget(brain::WorkerId worker) { carry_out(store_.forget(worker)); }
  void drop_before(uint32_t generation) { store_.drop_before(generation); }

 private:
  void carry_out(const SharedStore::Replies& replies);

  AgentCore& core_;
  SharedStore store_;
};

}  // namespace keepstep::agent
