#include "brain/ladder/recovery_ladder.h"

#include <algorithm>
#include <utility>

#include "brain/text.h"

namespace keepstep::brain {

void RecoveryLadder::start_again() {
  at_step_.clear();
  in_a_row_ = {};
  raised_.reset();
  spoilt_.reset();
}

const char* name(Rung rung) {
  switch (rung) {
    case Rung::kRedo:
      return "redo";
    case Rung::kReplace:
      return "replace";
    case Rung::kReplaceNode:
      return "replace_node";
    case Rung::kRestartWithState:
      return "restart_with_state";
    case Rung::kRestart:
      return "restart";
    case Rung::kEnd:
      return "end";
  }
  return "unknown";
}

std::string outlived_text(const OutlivedFailure& failure) {
  const std::string when = failure.steps == 1
                               ? "there alone"
                               : "at " + std::to_string(failure.steps) + " steps, the last of them step " +
                                     std::to_string(failure.last_step);
  return failure.what + ": it was raised " + when +
         (failure.skipped
              ? ", and what it followed was a commit: no redo ran that code again, so what it had to do there "
                "is missing (run.evaluate is made again)"
              : ", and not by the redo");
}

LadderDecision RecoveryLadder::on_fault(const Fault& fault, Time now) {
  if (fault.kind == FaultKind::kNoSource) {
    return on_no_source(fault);
  }
  raised_ = fault.kind == FaultKind::kException && !fault.after_commit ? std::optional(fault) : std::nullopt;
  switch (fault.kind) {
    case FaultKind::kException:
      return on_exception(fault);
    case FaultKind::kLink:
      return on_link(fault);
    case FaultKind::kDigests:
      return on_digests(fault);
    case FaultKind::kDeath:
      return on_death(fault, now);
    case FaultKind::kNoSource:
    case FaultKind::kPlainDeath:
      break;
  }
  return restart_or_end(fault, fault.what, Rung::kRestart);
}

std::string origin_of(const std::string& traceback) {
  std::string origin;
  std::string last;
  size_t at = 0;
  while (at < traceback.size()) {
    const size_t end = std::min(traceback.find('\n', at), traceback.size());
    const std::string line = traceback.substr(at, end - at);
    at = end + 1;
    if (line.starts_with("  File ")) {
      origin += line + '\n';
    } else if (!line.empty() && line.front() != ' ') {
      last = line;
    }
  }
  return origin.empty() ? "" : origin + last.substr(0, last.find(':'));
}

// If the origin of an exception is not known, each one counts as different.
const OutlivedFailure* RecoveryLadder::note_failure(const Fault& fault) {
  const std::string origin = origin_of(fault.traceback);
  const auto known = std::ranges::find_if(outlived_, [&](const OutlivedFailure& each) {
    return origin.empty() ? each.what == fault.what : origin_of(each.traceback) == origin;
  });
  if (known == outlived_.end()) {
    if (outlived_.size() == kMaxOutlived) {
      return nullptr;
    }
    return &outlived_.emplace_back(
        OutlivedFailure{fault.what, fault.traceback, 1, fault.step, fault.step, fault.after_commit});
  }
  known->steps += fault.step != known->last_step;
  known->last_step = fault.step;
  known->skipped |= fault.after_commit;
  return &*known;
}

LadderDecision RecoveryLadder::on_exception(const Fault& fault) {
  const OutlivedFailure* const failure = note_failure(fault);
  if (fault.after_commit && failure != nullptr && failure->steps > config_.skipped_failures) {
    return LadderDecision{Rung::kEnd,
                          failure->what + "; it also failed after " + std::to_string(failure->steps - 1) +
                              " other commits, most recently that of step " + std::to_string(failure->last_step) +
                              ": a redo resumes after the commit and skips the code that failed",
                          fault.exit_code, failure->traceback};
  }
  AtStep& at = at_step_[fault.step + (fault.after_commit ? 1 : 0)];  // the step that does not get done
  if (at.exceptions++ == 0) {
    at.first_what = fault.what;
    at.first_traceback = fault.traceback;
  }
  if (in_a_row_.count == 0 || fault.step != in_a_row_.last_step + 1) {
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
    const char* const hope = fault.after_commit ? ": training continues after it" : ": a redo may fix it";
    return LadderDecision{Rung::kRedo, fault.what + hope, 0, ""};
  }
  const std::string redos = config_.redos_per_step == 1 ? "a redo" : std::to_string(config_.redos_per_step) + " redos";
  const std::string again = config_.redos_per_step == 0 ? "" : "; it came back after " + redos;
  return LadderDecision{Rung::kEnd, at.first_what + again, fault.exit_code, at.first_traceback};
}

// The next generation connects again, which fixes a brief interruption. If the connection stays broken, the cause is
// the network or a firewall: then one of its two ends must go. Without another node, all processes restart, and in the
// end the job reports which ends these were.
LadderDecision RecoveryLadder::on_link(const Fault& fault) {
  AtStep& at = at_step_[fault.step];
  const int links = ++at.links;
  const std::string allowed = std::to_string(config_.links_per_step);
  if (links <= config_.links_per_step) {
    return LadderDecision{
        Rung::kRedo, fault.what + ": reconnecting, redo " + std::to_string(links) + " of " + allowed + " at this step",
        0, ""};
  }
  const std::string because = fault.what + ": broken connection " + std::to_string(links) + " at step " +
                              std::to_string(fault.step) + ", " + allowed +
                              " are allowed. Both ends reach the coordinator, but not each other: is there a "
                              "firewall, a route or a cable between these two at fault?";
  if (fault.replaceability == Replaceability::kReplaceable) {
    at.links = 0;  // another node has other connections; spare nodes are few
    return LadderDecision{Rung::kReplaceNode,
                          because + " The ranks of node " + std::to_string(fault.node) + " move to a spare node", 0, "",
                          fault.node};
  }
  return restart_or_end(fault, because, Rung::kRestartWithState);
}

LadderDecision RecoveryLadder::on_digests(const Fault& fault) {
  const int times = ++at_step_[fault.step].digests;
  const std::string allowed = std::to_string(config_.replacements_per_step);
  if (times <= config_.replacements_per_step) {
    return LadderDecision{Rung::kRedo, fault.what + ": comparing the sealed digests will show which rank differs", 0,
                          ""};
  }
  // Not with the state: if votes keep differing, nobody can tell whose memory to trust.
  return restart_or_end(fault,
                        fault.what + ": time " + std::to_string(times) + " at step " + std::to_string(fault.step) +
                            ", " + allowed + " are allowed",
                        Rung::kRestart);
}

LadderDecision RecoveryLadder::on_death(const Fault& fault, Time now) {
  note_on_node(fault.node, now);
  const int deaths = ++at_step_[fault.step].deaths;
  std::string because = fault.what;
  if (const int here = faults_on(fault.node, now);
      config_.faults_per_node > 0 && here >= config_.faults_per_node && fault.replaceability != Replaceability::kOnly) {
    const std::string node = "node " + std::to_string(fault.node);
    because += "; " + node + " had " + std::to_string(here) + (here == 1 ? " fault" : " faults") + " within " +
               seconds_text(config_.node_window);
    switch (fault.replaceability) {
      case Replaceability::kReplaceable:
        return LadderDecision{Rung::kReplaceNode, because + ": its ranks move to a spare node", 0, "", fault.node};
      case Replaceability::kNoSpare:
        because += ", but there is no spare node to take its ranks";
        break;
      case Replaceability::kHasRank0:
        because += ", but the node of rank 0 stays: the coordinator runs there";
        break;
      case Replaceability::kGone:
      case Replaceability::kOnly:
        break;
    }
  }
  if (deaths <= config_.replacements_per_step) {
    return LadderDecision{Rung::kReplace, because, 0, ""};
  }
  return restart_or_end(fault,
                        because + ": fault " + std::to_string(deaths) + " at step " + std::to_string(fault.step) +
                            ", " + std::to_string(config_.replacements_per_step) + " are allowed",
                        Rung::kRestartWithState);
}

bool RecoveryLadder::on_digest_mismatch(NodeId node, Replaceability replaceability, Time now) {
  note_on_node(node, now);
  return config_.faults_per_node > 0 && faults_on(node, now) >= config_.faults_per_node &&
         replaceability == Replaceability::kReplaceable;
}

// Keeping more than the budget is unnecessary: that is enough to answer every question.
void RecoveryLadder::note_on_node(NodeId node, Time now) {
  std::deque<Time>& faults = on_node_[node];
  faults.push_back(now);
  while (faults.size() > static_cast<size_t>(std::max(config_.faults_per_node, 1))) {
    faults.pop_front();
  }
}

int RecoveryLadder::faults_on(NodeId node, Time now) const {
  const auto found = on_node_.find(node);
  if (found == on_node_.end()) {
    return 0;
  }
  return static_cast<int>(
      std::ranges::count_if(found->second, [&](Time at) { return now - at < config_.node_window; }));
}

// If the update raised on all ranks, there is nothing to redo from, so a restart takes the place of the redo. If it
// raises again, the job ends.
LadderDecision RecoveryLadder::on_no_source(const Fault& fault) {
  const std::optional<Fault> raised = std::exchange(raised_, std::nullopt);
  if (!raised || raised->step + 1 != fault.step) {
    return restart_or_end(fault, fault.what, Rung::kRestart);
  }
  if (spoilt_ && spoilt_->step == raised->step) {
    return LadderDecision{Rung::kEnd, spoilt_->what + "; " + fault.what + "; the same happened again after a restart",
                          fault.exit_code, spoilt_->traceback};
  }
  spoilt_ = raised;
  Fault with_traceback = fault;
  with_traceback.traceback = raised->traceback;
  return restart_or_end(with_traceback, raised->what + "; " + fault.what, Rung::kRestart);
}

LadderDecision RecoveryLadder::restart_or_end(const Fault& fault, const std::string& because, Rung rung) {
  if (restarts_ >= config_.restarts) {
    return LadderDecision{Rung::kEnd, because + "; all " + std::to_string(config_.restarts) + " restarts are used up",
                          fault.exit_code, fault.traceback};
  }
  ++restarts_;
  // The steps are repeated, with fresh processes. Exceptions are remembered: the user's code is the same.
  for (auto& [step, at] : at_step_) {
    at.deaths = 0;
    at.links = 0;
    at.digests = 0;
  }
  return LadderDecision{
      rung, because + ": restart " + std::to_string(restarts_) + " of " + std::to_string(config_.restarts), 0, ""};
}

void RecoveryLadder::on_progress(Version version) {
  at_step_.erase(at_step_.begin(), at_step_.upper_bound(version));
  if (spoilt_ && spoilt_->step < version) {
    spoilt_.reset();
  }
}

}  // namespace keepstep::brain
