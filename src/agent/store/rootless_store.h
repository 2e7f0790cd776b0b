// The Store of ranks that keepstep did not start, on one or several nodes. No node is special and there is no
// coordinator: the agents connect to each other (nodes/store_lines.h), and every key has a home by hash
// (shared_store.h).
//
//   another agent is not connected yet  ->  questions to it wait
//   its connection breaks               ->  what it was asked fails, since it may or may not have been carried out; new
//                                           questions wait for its return
//   it returns with another origin, or not within kReturnNs
//                                       ->  its keys are gone: all questions to it fail, until the keys start over
//
// Keys end with the last client of all nodes, so a job that is started again under the same name begins with none. An
// agent's origin is the identity of its keys: it changes whenever they start over. Pure bookkeeping, like Store.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/store/shared_store.h"
#include "brain/types.h"
#include "messages/agent_messages.h"

namespace keepstep::agent {

class RootlessStore {
 public:
  static constexpr int64_t kReturnNs = 30'000'000'000;

  struct Failure {
    brain::WorkerId client = brain::kNoWorker;
    uint64_t id = 0;
    std::string because;
  };
  struct Replies {
    std::vector<StoreAnswer> answers;                                           // for clients of this node
    std::vector<Failure> failures;                                              // instead of an answer
    std::vector<std::pair<brain::NodeId, messages::ToRootlessStore>> messages;  // for agents that are connected
  };

  // `names`: of all nodes, for messages. `origin`: the first one, random.
  RootlessStore(std::vector<std::string> names, brain::NodeId self, uint64_t origin);

  // A question of a client of this node. Clients of all nodes have different numbers (new_client()).
  Replies ask(StoreRequest request);
  brain::WorkerId new_client();
  // The client waits no longer. What has not been sent yet never is.
  void cancel(brain::WorkerId client, uint64_t id);
  Replies forget(brain::WorkerId client);
  // Whether this node has clients.
  Replies set_busy(bool busy);

  // A connection to another agent, to which hellos are sent; what it says; its end. Only one at a time for a node.
  Replies connected(brain::NodeId node);
  Replies on_message(brain::NodeId from, const messages::ToRootlessStore& message);
  Replies disconnected(brain::NodeId node, int64_t now_ns);
  Replies tick(int64_t now_ns);

  // No node has clients, as far as this one knows, so the keys are not needed any more.
  bool idle() const;
  size_t size() const { return store_.size(); }  // keys whose home is here

 private:
  // Another node's agent.
  struct Other {
    bool connected = false;
    bool greeted = false;  // in this connection; only then it is asked
    bool busy = false;     // while it is away: it was
    std::optional<uint64_t> origin;
    std::optional<uint64_t> relied_on;         // the origin that was asked something since the keys began
    std::string gone;                          // why its keys are gone
    std::optional<int64_t> lost_at_ns;         // it was connected until then
    std::deque<messages::KeyQuestion> queued;  // for when it is greeted
    std::set<std::pair<brain::WorkerId, uint64_t>> asked;
  };

  Replies carry(const SharedStore::Replies& replies);
  void add(const SharedStore::Replies& more, Replies& replies);
  void question(brain::NodeId to, const messages::KeyQuestion& question, Replies& replies);
  void hello(brain::NodeId from, const messages::StoreHello& hello, Replies& replies);
  void give_up(Other& other, const std::string& because, Replies& replies);
  void start_over_if_idle(Replies& replies);
  SharedStore new_store() const;

  const std::vector<std::string> names_;
  const brain::NodeId self_;
  uint64_t origin_;
  SharedStore store_;
  bool used_ = false;          // since the keys began
  std::vector<Other> others_;  // by node; that of this one is not used
  bool busy_ = false;
  brain::WorkerId last_client_;
};

}  // namespace keepstep::agent
