// The wall clocks of several nodes (clock_probe.h): each agent asks node 0's, before its node takes part and then now
// and then; node 0's says which ones are apart. Training does not need them: people who read logs of several nodes do,
// and tokens, leases and certificates that expire.
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

  bool asks_first();                                    // true: it does, and introduces itself with the last answer
  std::optional<messages::ClockReport> report() const;  // of this node, for node 0, once it is known
  void watch();
  // Node 0 said what time it is. True: that was the last answer, and this node may introduce itself.
  bool on_answer(const messages::ClockAnswer& answer);

  // ---- node 0 ----
  void answer(brain::NodeId from, const messages::ClockQuestion& question);
  void on_report(brain::NodeId from, const messages::ClockReport& report);  // of a node that takes part
  // Why a node that comes must not take part: the clocks are apart, and that counts.
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
  std::set<brain::NodeId> apart_;  // as said last
};

}  // namespace keepstep::agent
