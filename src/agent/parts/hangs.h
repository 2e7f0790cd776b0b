// Ranks that make no progress: what the agent observes, and what follows from a suspicion (docs/design/hangs.md).
#pragma once

#include <string>
#include <vector>

#include "agent/parts/core.h"
#include "agent/watch/hang_watch.h"
#include "agent/watch/stacks.h"

namespace keepstep::agent {

class Hangs {
 public:
  explicit Hangs(AgentCore& core) : core_(core), watch_(core.config.spec.hang) {}

  void watch();
  // Another node reports which of its ranks wait for others.
  Status on_report(brain::NodeId from, const messages::WaitingRanks& report);

 private:
  void on_hang(const brain::Suspicion& suspicion, brain::Identity identity);
  void on_left_early(const brain::EarlyLeaver& leaver, brain::Identity identity);
  void write_stacks(const std::string& file, const std::vector<RankStacks>& stacks);

  AgentCore& core_;
  HangWatch watch_;
  int64_t told_ns_ = 0;  // last report to the agents of other nodes
};

}  // namespace keepstep::agent
