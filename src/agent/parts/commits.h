// What ranks committed and logged. Read from the memory of workers (rank/link/log_ring.h), dead ones too, and passed on
// to the metrics, the journal and the brains.
#pragma once

#include <vector>

#include "agent/memory/generation.h"
#include "agent/parts/core.h"
#include "agent/parts/pace.h"
#include "rank/link/log_ring.h"

namespace keepstep::agent {

class Commits {
 public:
  Commits(AgentCore& core, Pace& pace) : core_(core), pace_(pace) {}

  // A generation begins; its first commit will be reported.
  void begin() { first_told_ = false; }
  // Collects what is new since the last call.
  void collect(WorkerProcess& process);
  void collect_all();
  // Keeps the losses of steps that ranks voted on and could not report. Their pages may be gone when the line is
  // written, because the next generation may fail to form, too.
  void keep_losses(const std::vector<Generation::Holder>& holders);

 private:
  void on_commit(const WorkerProcess& process, const rank::CommitRecord& record);

  AgentCore& core_;
  Pace& pace_;
  bool first_told_ = true;
};

}  // namespace keepstep::agent
