// How a node comes into a job of several nodes: it says what it was started with, and node 0's agent, which compares
// and speaks for the job, takes it or refuses it. Node 0 also says for whom the job waits before it begins.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "agent/parts/clocks.h"
#include "agent/parts/core.h"

namespace keepstep::agent {

class Joining {
 public:
  Joining(AgentCore& core, Clocks& clocks) : core_(core), clocks_(clocks) {}

  void introduce();
  void join();                                  // 'A': this node fits, and the job hears of it
  void on_refused(const std::string& because);  // 'X': it does not
  bool refused() const { return refused_; }     // and the job goes on without us
  void on_clock_message(brain::NodeId from, const nlohmann::json& body);  // 'T'

  // ---- node 0 ----
  // 'F': who comes, and what that node was started with. False: it does not fit, and was refused.
  bool clock_fits(brain::NodeId from, const nlohmann::json& body);
  bool on_facts(brain::NodeId from, const std::string& name, const nlohmann::json& facts);
  void on_fingerprint(brain::NodeId from, const nlohmann::json& theirs);  // 'P', or our own workers'
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
  std::map<brain::NodeId, nlohmann::json> fingerprints_;
  int64_t started_at_ns_ = 0;
  int64_t complete_since_ns_ = 0;  // all had come, but no worker was asked for; 0: not so
  bool said_waiting_ = false;
};

}  // namespace keepstep::agent
