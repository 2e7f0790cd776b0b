// The Store of a job on all its nodes. Every key has a home, the agent that keeps it: for a key of a generation the
// hash of the key over the generation's nodes, so that no agent keeps or answers much more than the others; for a key
// of the whole job node 0, without which there is no job. A worker always asks the agent of its own node, which hands
// the question on. Pure bookkeeping: answers and messages come back as values, for the shell to send.
//
// On one node it is that node's Store and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/store/store.h"
#include "brain/types.h"
#include "messages/agent_messages.h"

namespace keepstep::agent {

class SharedStore {
 public:
  struct Replies {
    std::vector<StoreAnswer> answers;                                        // for workers of this node
    std::vector<std::pair<brain::NodeId, messages::StoreMessage>> messages;  // for other nodes' agents
  };

  explicit SharedStore(brain::NodeId self) : self_(self), homes_{kJobsHome} {}

  // A generation begins on these nodes, all different. Workers ask for its keys only once they have its Prepare, which
  // comes after this call; questions about keys of the generations before need no answer any more. Counts that wait
  // are asked anew: who kept a part of the answer may be gone.
  Replies set_homes(std::vector<brain::NodeId> homes);

  // A question of a worker on this node (`request.node` is not read).
  Replies ask(StoreRequest request);
  Replies on_message(brain::NodeId from, const messages::KeyQuestion& question);
  Replies on_message(brain::NodeId from, const messages::KeyAnswer& answer);
  Replies on_message(brain::NodeId from, const messages::ForgetQuestions& forget);
  // A worker of this node is gone.
  Replies forget(brain::WorkerId worker);
  void drop_before(uint32_t generation) { store_.drop_before(generation); }

  size_t size() const { return store_.size(); }  // keys that are at home here
  brain::NodeId home_of(const std::string& key) const;

 private:
  static constexpr brain::NodeId kJobsHome = 0;
  // A count asks everybody; the answer is the sum.
  struct Count {
    size_t awaited = 0;
    int64_t sum = 0;
  };
  void ask_all(const StoreRequest& request, Replies& replies);
  void answer(const std::vector<StoreAnswer>& answers, Replies& replies);
  void deliver(const StoreAnswer& answer, Replies& replies);

  brain::NodeId self_;
  std::vector<brain::NodeId> homes_;
  Store store_;
  std::map<std::pair<brain::WorkerId, uint64_t>, Count> counts_;
  uint64_t round_ = 1;  // of counts: what answers an earlier one comes too late
};

}  // namespace keepstep::agent
