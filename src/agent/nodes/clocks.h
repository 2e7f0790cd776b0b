// Compares the wall clocks of several nodes (clock_probe.h). Each agent asks node 0's for the time, before its node
// takes part and now and then later; node 0's agent reports which clocks are apart. Training does not depend on them,
// but people who read logs of several nodes do, and so do tokens, leases and certificates that expire.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "agent/parts/core.h"
#include "agent/watch/clock_probe.h"

namespace keepstep::agent {

class Clocks {
 public:
  explicit Clocks(AgentCore& core) : core_(core) {}

  bool asks_first();                                    // true: it asked, and introduces itself after the last answer
  std::optional<messages::ClockReport> report() const;  // of this node, for node 0, once it is known
  void watch();
  // Node 0 sent its time. Returns true for the last answer: then this node may introduce itself.
  bool on_answer(const messages::ClockAnswer& answer);

  // ---- node 0 ----
  void answer(brain::NodeId from, const messages::ClockQuestion& question);
  void on_report(brain::NodeId from, const messages::ClockReport& report);  // of a node that takes part
  // Why a joining node must not take part: its clock is too far off, and the job refuses such nodes. Otherwise
  // std::nullopt.
  std::optional<std::string> why_not(brain::NodeId from, const std::string& host, const messages::ClockReport& report);

 private:
  bool compares() const;
  void ask();
  struct Judged {
    bool apart = false;
    std::string because;
  };
  Judged judge(brain::NodeId from, const std::string& host, const messages::ClockReport& report);

  AgentCore& core_;
  ClockProbe probe_;
  int64_t asked_ns_ = 0;
  std::set<brain::NodeId> apart_;  // as last reported
};

}  // namespace keepstep::agent
