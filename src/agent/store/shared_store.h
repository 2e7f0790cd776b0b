// The Store of a job, across all its nodes. Every key has a home, the agent that keeps it. A key of a generation has
// its home by hash over the generation's nodes, so that no agent keeps or answers much more than the others. A key of
// the whole job has its home on node 0, without which there is no job. A worker always asks the agent of its own node,
// which passes the request on. Pure bookkeeping: answers and messages are returned as values for the shell to send.
//
// On a single node this is just that node's Store.
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

  // A generation begins on these nodes, all different. Workers ask for its keys only after its Prepare, which follows
  // this call. Requests for keys of previous generations need no answer any more. Counts in progress are requested
  // again: the holder of a part of the answer may be gone.
  Replies set_homes(std::vector<brain::NodeId> homes);

  // A request of a worker on this node (`request.node` is ignored).
  Replies ask(StoreRequest request);
  Replies on_message(brain::NodeId from, const messages::KeyQuestion& question);
  Replies on_message(brain::NodeId from, const messages::KeyAnswer& answer);
  Replies on_message(brain::NodeId from, const messages::ForgetQuestions& forget);
  // A worker of this node is gone.
  Replies forget(brain::WorkerId worker);
  // What a node asked for will not reach it any more.
  void forget_node(brain::NodeId node) { store_.forget_node(node); }
  void drop_before(uint32_t generation) { store_.drop_before(generation); }

  size_t size() const { return store_.size(); }  // keys whose home is here
  brain::NodeId home_of(const std::string& key) const;

 private:
  static constexpr brain::NodeId kJobsHome = 0;
  // A count asks all nodes; the answer is the sum.
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
  uint64_t round_ = 1;  // of counts; answers for an earlier round are ignored
};

}  // namespace keepstep::agent
