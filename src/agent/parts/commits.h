// What ranks committed and logged: read from the memory of workers (rank/link/log_ring.h), also of the dead, and passed
// on to metrics, journal and brains.
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

  // A generation begins: its first commit is told.
  void begin() { first_told_ = false; }
  // Since the last time.
  void collect(WorkerProcess& process);
  void collect_all();
  // The losses of steps that ranks voted on and could not report. Their pages may be gone when the line is written: the
  // next generation may not form either.
  void keep_losses(const std::vector<Generation::Holder>& holders);

 private:
  void on_commit(const WorkerProcess& process, const rank::CommitRecord& record);

  AgentCore& core_;
  Pace& pace_;
  bool first_told_ = true;
};

}  // namespace keepstep::agent
