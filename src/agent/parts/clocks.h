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

  bool asks_first();              // true: it does, and the node introduces itself with the last answer
  nlohmann::json report() const;  // of this node, for node 0; null: not known
  void watch();
  // 'T': what time it is. True: the last answer came, and this node may introduce itself.
  bool on_message(brain::NodeId from, const nlohmann::json& body);
  // Node 0. `comes`: just now, and would take part. Why it must not: the clocks are apart, and that counts.
  std::optional<std::string> on_report(brain::NodeId from, const std::string& host, const nlohmann::json& report,
                                       bool comes);

 private:
  bool compares() const;
  void ask();

  AgentCore& core_;
  ClockProbe probe_;
  int64_t asked_ns_ = 0;
  std::set<brain::NodeId> apart_;  // as said last
};

}  // namespace keepstep::agent
