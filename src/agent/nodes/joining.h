// How a node joins a job of several nodes. It reports what it was started with; node 0's agent, which speaks for the
// job, compares that and accepts or refuses the node. Node 0 also reports which nodes the job waits for before it
// begins.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "agent/nodes/clocks.h"
#include "agent/parts/core.h"

namespace keepstep::agent {

class Joining {
 public:
  Joining(AgentCore& core, Clocks& clocks) : core_(core), clocks_(clocks) {}

  void introduce();
  void join();                                  // this node fits; tells the job
  void on_refused(const std::string& because);  // this node does not fit
  bool refused() const { return refused_; }     // refused, and the job goes on without us
  void on_clock_answer(const messages::ClockAnswer& answer);

  // ---- node 0 ----
  // A node joins, and reports what it was started with. Returns false if it does not fit and was refused.
  bool clock_fits(brain::NodeId from, const messages::Facts& facts);
  bool on_facts(brain::NodeId from, const messages::Facts& facts);
  // An unreadable message from a node that has not introduced itself.
  void on_unreadable(brain::NodeId from);
  void on_fingerprint(brain::NodeId from, const messages::Texts& theirs);  // also of our own workers
  // The status to show while the job has not begun; std::nullopt once it has.
  std::optional<std::string> await_nodes();

 private:
  void refuse_or_end(brain::NodeId node, const std::string& because);
  void say_that_all_came();
  std::string await_begin();

  AgentCore& core_;
  Clocks& clocks_;
  bool refused_ = false;
  int64_t introduced_at_ns_ = 0;
  std::map<brain::NodeId, messages::Texts> fingerprints_;
  int64_t started_at_ns_ = 0;
  int64_t complete_since_ns_ = 0;  // all nodes have joined, but no worker was requested; 0: no
  bool said_waiting_ = false;
};

}  // namespace keepstep::agent
