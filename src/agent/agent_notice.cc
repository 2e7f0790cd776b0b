// The agent's part for notices: word from outside (a scheduler's signal) that the job has to stop soon.
//
// The ranks raise a flag with their next vote. All see it after the same step, call what the script wants called, and
// finish; then the job ends with kNoticeExitCode. One node's notice stops all nodes: it tells the others, and one rank
// that raised the flag would be enough.

#include <csignal>
#include <cstring>
#include <set>

#include "agent/agent.h"

namespace keepstep::agent {

using worker::MessageType;

bool is_notice(const JobSpec& spec, int signal) {
  return signal == SIGUSR1 || (signal == SIGTERM && !spec.slurm_job.empty());
}

// False: the signal is to be taken as any other. Slurm may repeat it, to every process that it knows of.
bool Agent::on_notice(int signal) {
  if (end_.has_value() || !notice_.empty()) {
    return true;
  }
  const std::string what =
      absl::StrFormat("SIG%s came to node %d (%s)", sigabbrev_np(signal), config_.node, config_.node_name);
  if (brain_.prepared() == nullptr) {
    notice_ = what;
    link_->send(brain::StopRequested{kNoticeExitCode, "stopped before the first step: " + what});
    return true;
  }
  bool ranks = false;
  bool recoverable = false;
  for (const auto& [id, process] : workers_) {
    ranks |= rank_of(*process).has_value();
    recoverable |= rank_of(*process).has_value() && process->recoverable;
  }
  if (ranks && !recoverable) {
    if (signal == SIGUSR1) {
      pump_.say(
          absl::StrFormat("keepstep: %s; the script has no recoverable function, so nobody can stop after a step, "
                          "and it is left to the script",
                          what));
    }
    return signal == SIGUSR1;
  }
  if (!ranks) {
    pump_.say(absl::StrFormat("keepstep: %s, which has no ranks; the job goes on", what));
    return true;
  }
  journal_.write("notice", brain_.identity(), what, {{"signal", int64_t{signal}}});
  pump_.say(absl::StrFormat("keepstep: %s: all ranks finish their step, then the job stops", what));
  std::set<brain::NodeId> others;
  for (const brain::RankTable::Entry& entry : brain_.prepared()->table.entries()) {
    others.insert(entry.node);
  }
  others.erase(config_.node);
  for (const brain::NodeId other : others) {  // before a rank hears of it: then all can say why
    route(other, 'Q', nlohmann::json{{"because", what}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  take_notice(what);
  return true;
}

void Agent::take_notice(const std::string& because) {
  if (notice_.empty()) {
    notice_ = because;
    for (const auto& process : living_members()) {
      tell_notice(*process);
    }
  }
}

void Agent::tell_notice(WorkerProcess& process) {
  if (!notice_.empty() && brain_.prepared() != nullptr) {
    tell(process, MessageType::kNotice, brain_.identity(), {{"because", notice_}});
  }
}

// All ranks of all nodes are through with their last step.
void Agent::end_on_notice() {
  if (stopped_on_notice_) {
    collect_all();
    link_->send(brain::StopRequested{kNoticeExitCode,
                                     absl::StrFormat("stopped after step %d: %s", metrics_.last_step(),
                                                     notice_.empty() ? "a notice came to another node" : notice_)});
  }
}

}  // namespace keepstep::agent
