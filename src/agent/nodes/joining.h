// How a node comes into a job of several nodes: it says what it was started with, and node 0's agent, which compares
// and speaks for the job, takes it or refuses it. Node 0 also says for whom the job waits before it begins.
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
  void join();                                  // this node fits, and the job hears of it
  void on_refused(const std::string& because);  // it does not
  bool refused() const { return refused_; }     // and the job goes on without us
  void on_clock_answer(const messages::ClockAnswer& answer);

  // ---- node 0 ----
  // Who comes, and what that node was started with. False: it does not fit, and was refused.
  bool clock_fits(brain::NodeId from, const messages::Facts& facts);
  bool on_facts(brain::NodeId from, const messages::Facts& facts);
  // A message that cannot be read, from a node that has not said who it is.
  void on_unreadable(brain::NodeId from);
  void on_fingerprint(brain::NodeId from, const messages::Texts& theirs);  // or our own workers'
  // While the job has not begun: what people are told of the moment. Nothing: it has.
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
  int64_t complete_since_ns_ = 0;  // all had come, but no worker was asked for; 0: not so
  bool said_waiting_ = false;
};

}  // namespace keepstep::agent
