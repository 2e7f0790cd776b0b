// A notice from outside (a scheduler's signal) that the job has to stop soon.
//
// The ranks raise a flag with their next vote. All see it after the same step, call what the script registered for a
// notice, and finish; then the job ends with kNoticeExitCode. A notice to one node stops all: its agent tells the other
// nodes, and a single rank that raises the flag is enough.
#pragma once

#include <string>

#include "agent/parts/core.h"

namespace keepstep::agent {

// Whether `signal` means that the job has to stop soon. Slurm ends a job with SIGTERM, and sends a signal of the user's
// choice some time before. Elsewhere SIGTERM ends a job at once, as usual.
bool is_notice(const JobSpec& spec, int signal);

class Notice {
 public:
  explicit Notice(AgentCore& core) : core_(core) {}

  // False: the signal has its usual meaning. Slurm may repeat it, and sends it to every process that it knows of.
  bool on_signal(int signal);
  void take(const std::string& because);  // another node got it
  void tell(WorkerProcess& process);      // if there was one
  bool came() const { return !because_.empty(); }
  // Records whether ranks of this node left their loops because of the notice.
  void ranks_stopped(bool stopped) { stopped_ = stopped; }
  bool stopped() const { return stopped_; }
  void end();  // all ranks of all nodes finished their last step

 private:
  AgentCore& core_;
  std::string because_;  // why the ranks must stop after their step; empty if they need not
  bool stopped_ = false;
};

}  // namespace keepstep::agent
