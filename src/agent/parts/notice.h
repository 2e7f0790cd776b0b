// Word from outside (a scheduler's signal) that the job has to stop soon.
//
// The ranks raise a flag with their next vote. All see it after the same step, call what the script wants called, and
// finish; then the job ends with kNoticeExitCode. One node's notice stops all nodes: it tells the others, and one rank
// that raised the flag would be enough.
#pragma once

#include <string>

#include "agent/parts/core.h"

namespace keepstep::agent {

// Whether `signal` says that the job has to stop soon. Slurm ends a job with SIGTERM, and sends a signal of the user's
// choice some time before; elsewhere SIGTERM ends a job at once, as it always did.
bool is_notice(const JobSpec& spec, int signal);

class Notice {
 public:
  explicit Notice(AgentCore& core) : core_(core) {}

  // False: the signal is to be taken as any other. Slurm may repeat it, to every process that it knows of.
  bool on_signal(int signal);
  void take(const std::string& because);  // it came to another node
  void tell(WorkerProcess& process);      // if one came
  bool came() const { return !because_.empty(); }
  // Ranks of this node left their loops because of it, or did not.
  void ranks_stopped(bool stopped) { stopped_ = stopped; }
  bool stopped() const { return stopped_; }
  void end();  // all ranks of all nodes are through with their last step

 private:
  AgentCore& core_;
  std::string because_;  // why the ranks are to stop after their step; empty: no reason
  bool stopped_ = false;
};

}  // namespace keepstep::agent
