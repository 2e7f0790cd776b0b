#include "agent/parts/notice.h"

#include <csignal>
#include <cstring>
#include <set>

namespace keepstep::agent {

bool is_notice(const JobSpec& spec, int signal) {
  return signal == SIGUSR1 || (signal == SIGTERM && !spec.slurm_job.empty());
}

bool Notice::on_signal(int signal) {
  if (core_.end.has_value() || !because_.empty()) {
    return true;
  }
  const std::string what =
      absl::StrFormat("SIG%s came to node %d (%s)", sigabbrev_np(signal), core_.config.node, core_.config.node_name);
  if (core_.brain.prepared() == nullptr) {
    because_ = what;
    core_.stop_job(kNoticeExitCode, "stopped before the first step: " + what);
    return true;
  }
  bool ranks = false;
  bool recoverable = false;
  for (const auto& [id, process] : core_.workers) {
    ranks |= core_.rank_of(*process).has_value();
    recoverable |= core_.rank_of(*process).has_value() && process->recoverable;
  }
  if (ranks && !recoverable) {
    if (signal == SIGUSR1) {
      core_.pump.say(
          absl::StrFormat("keepstep: %s; the script has no recoverable function, so nobody can stop after a step, "
                          "and it is left to the script",
                          what));
    }
    return signal == SIGUSR1;
  }
  if (!ranks) {
    core_.pump.say(absl::StrFormat("keepstep: %s, which has no ranks; the job goes on", what));
    return true;
  }
  core_.journal.write("notice", core_.brain.identity(), what, {{"signal", int64_t{signal}}});
  core_.pump.say(absl::StrFormat("keepstep: %s: all ranks finish their step, then the job stops", what));
  std::set<brain::NodeId> others;
  for (const brain::RankTable::Entry& entry : core_.brain.prepared()->table.entries()) {
    others.insert(entry.node);
  }
  others.erase(core_.config.node);
  for (const brain::NodeId other : others) {  // before any rank learns of it, so that all can say why
    core_.route(other, messages::NoticeCame{what});
  }
  take(what);
  return true;
}

void Notice::take(const std::string& because) {
  if (because_.empty()) {
    because_ = because;
    for (const auto& process : core_.living_members()) {
      tell(*process);
    }
  }
}

void Notice::tell(WorkerProcess& process) {
  if (!because_.empty() && core_.brain.prepared() != nullptr) {
    core_.tell(process, core_.brain.identity(), messages::Notice{because_});
  }
}

void Notice::end() {
  core_.stop_job(kNoticeExitCode, absl::StrFormat("stopped after step %d: %s", core_.metrics.last_step(),
                                                  because_.empty() ? "a notice came to another node" : because_));
}

}  // namespace keepstep::agent
