#include "brain/recovery_ladder.h"

namespace keepstep::brain {

const char* name(Rung rung) {
  switch (rung) {
    case Rung::kRedo:
      return "redo";
    case Rung::kReplace:
      return "replace";
    case Rung::kRestart:
      return "restart";
    case Rung::kEnd:
      return "end";
  }
  return "unknown";
}

LadderDecision RecoveryLadder::on_fault(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kException:
      return on_exception(fault);
    case FaultKind::kLink:
      return on_link(fault);
    case FaultKind::kDeath:
      return on_death(fault);
    case FaultKind::kNoSource:
    case FaultKind::kPlainDeath:
      break;
  }
  return restart_or_end(fault, fault.what);
}

LadderDecision RecoveryLadder::on_exception(const Fault& fault) {
  AtStep& at = at_step_[fault.step];
  if (at.exceptions++ == 0) {
    at.first_what = fault.what;
    at.first_traceback = fault.traceback;
  }
  if (fault.step != in_a_row_.last_step + 1) {
    in_a_row_ = {0, 0, fault.what, fault.traceback};
  }
  in_a_row_.count += fault.step != in_a_row_.last_step;
  in_a_row_.last_step = fault.step;
  if (in_a_row_.count > config_.steps_in_a_row) {
    return LadderDecision{
        Rung::kEnd,
        in_a_row_.first_what + "; and so did the " + std::to_string(in_a_row_.count - 1) + " steps after it",
        fault.exit_code, in_a_row_.first_traceback};
  }
  if (at.exceptions <= config_.redos_per_step) {
    return LadderDecision{Rung::kRedo, fault.what + ": one redo may mend it", 0, ""};
  }
  const std::string redos = config_.redos_per_step == 1 ? "a redo" : std::to_string(config_.redos_per_step) + " redos";
  const std::string again = config_.redos_per_step == 0 ? "" : "; it came back after " + redos;
  return LadderDecision{Rung::kEnd, at.first_what + again, fault.exit_code, at.first_traceback};
}

// The next generation connects anew, which mends what was cut for a moment. What stays cut is the network's, or the
// firewall's: then all start anew, and in the end the job says between whom it was.
LadderDecision RecoveryLadder::on_link(const Fault& fault) {
  const int links = ++at_step_[fault.step].links;
  const std::string allowed = std::to_string(config_.links_per_step);
  if (links <= config_.links_per_step) {
    return LadderDecision{
        Rung::kRedo,
        fault.what + ": connecting anew, redo " + std::to_string(links) + " of " + allowed + " at this step", 0, ""};
  }
  return restart_or_end(fault, fault.what + ": broken connection " + std::to_string(links) + " at step " +
                                   std::to_string(fault.step) + ", " + allowed +
                                   " are allowed. Both ends reach the coordinator, but not each other: is there a "
                                   "firewall, a route or a cable between these two at fault?");
}

LadderDecision RecoveryLadder::on_death(const Fault& fault) {
  const int deaths = ++at_step_[fault.step].deaths;
  if (deaths <= config_.replacements_per_step) {
    return LadderDecision{Rung::kReplace, fault.what, 0, ""};
  }
  return restart_or_end(fault, fault.what + ": fault " + std::to_string(deaths) + " at step " +
                                   std::to_string(fault.step) + ", " + std::to_string(config_.replacements_per_step) +
                                   " are allowed");
}

LadderDecision RecoveryLadder::restart_or_end(const Fault& fault, const std::string& because) {
  if (restarts_ >= config_.restarts) {
    return LadderDecision{Rung::kEnd, because + "; all " + std::to_string(config_.restarts) + " restarts are used up",
                          fault.exit_code, fault.traceback};
  }
  ++restarts_;
  // The steps come again, with fresh processes. Exceptions are remembered: the user's code is the same.
  for (auto& [step, at] : at_step_) {
    at.deaths = 0;
    at.links = 0;
  }
  return LadderDecision{Rung::kRestart,
                        because + ": restart " + std::to_string(restarts_) + " of " + std::to_string(config_.restarts),
                        0, ""};
}

void RecoveryLadder::on_progress(Version version) { at_step_.erase(at_step_.begin(), at_step_.upper_bound(version)); }

}  // namespace keepstep::brain
