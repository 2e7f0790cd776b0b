// Membership: faults, up to the rung that each takes.

#include <algorithm>
#include <utility>

#include "brain/membership/membership.h"
#include "brain/membership/membership_text.h"
#include "brain/membership/staffing.h"

namespace keepstep::brain {
namespace {

// torchrun's job exits with 1 when a signal ended a worker.
int exit_code_of(const WorkerDied& event) { return event.signal == 0 ? event.exit_code : 1; }

}  // namespace

// ---- something died -----------------------------------------------------------------------------------------------

void Membership::on(const WorkerDied& event) {
  Worker* worker = job_.roster.find(event.worker);
  if (worker == nullptr) {
    return;
  }
  const bool confirmed = event.signal != -1;
  if (worker->status == Status::kGone) {
    if (confirmed) {
      confirm_exit(event.worker);
    }
    return;
  }
  const bool was_member = worker->status == Status::kMember;
  const bool was_starting = worker->status == Status::kStarting;
  // The early notice is enough if only a replacement follows. Otherwise the exit code decides: wait for it.
  if (!confirmed && (job_.round.ending().released() || was_starting || (was_member && !worker->recoverable))) {
    return;
  }
  worker->pid = event.pid != 0 ? event.pid : worker->pid;
  const std::string what = who_text(worker->taken, worker->rank, event.worker, worker->pid) + " " + how_text(event);
  note_fault(event, *worker, what);
  job_.retire(event.worker);
  if (was_member) {
    job_.dead_had = std::max(job_.dead_had, event.committed);
    job_.fence(event.worker, what);
    member_died(worker->rank, worker->recoverable, exit_code_of(event), what, event.traceback);
    return;
  }
  // A script that failed would fail again; a worker whose health check failed says nothing about the script.
  if (was_starting && event.signal == 0 && event.exit_code != 0 && event.unfit.empty() && !job_.ever_formed) {
    phases_.end(event.exit_code, what + " before it asked for a rank", event.traceback);
    return;
  }
  if (!confirmed) {
    job_.fence(event.worker, what);
  }
  // Unfit workers are counted by their agent, which gives up its node.
  candidate_lost(*worker, event.unfit.empty(), exit_code_of(event), what, event.traceback);
}

void Membership::on(const WorkerHung& event) {
  const Worker* worker = job_.roster.find(event.worker);
  if (worker == nullptr || worker->status != Status::kMember || event.identity != job_.round.identity()) {
    return;
  }
  const Rank rank = worker->rank;
  const std::string what = who_text(true, rank, event.worker, event.pid) + " hangs: " + event.because;
  job_.journal("fault_detected", what,
               {{"worker", int64_t{event.worker}},
                {"rank", int64_t{rank}},
                {"pid", event.pid},
                {"detected_by", std::string("hang")},
                {"signal", int64_t{-1}},
                {"exit_code", int64_t{0}},
                {"kind", std::string("hang")},
                {"idle_s", std::chrono::duration<double>(event.idle).count()}});
  if (!worker->recoverable || job_.round.ending().released()) {
    job_.kill(event.worker, what);  // this worker's exit decides what follows
    return;
  }
  job_.retire(event.worker);
  job_.fence(event.worker, what);
  member_died(rank, true, 1, what, "");
}

// Everything on a node is gone at once: one fault, whatever it held.
void Membership::on(const NodeLost& event) {
  if (job_.nodes.erase(event.node) == 0) {
    return;
  }
  job_.roster.lost_starts(event.node) = {};
  job_.round.lose(event.node);
  job_.holdings.lose(event.node);
  replacement_.cancel_vacating(event.node);
  const std::string what = "node " + std::to_string(event.node) + " is lost: " + event.because;
  std::vector<Rank> members;
  for (const auto& [id, worker] : job_.roster.all()) {
    if (worker.node == event.node && worker.status == Status::kMember) {
      members.push_back(worker.rank);
    }
  }
  const std::vector<WorkerId> gone = job_.lose_workers_of(event.node);
  job_.leaving_nodes.erase(event.node);
  job_.journal("fault_detected", what,
               {{"lost_node", int64_t{event.node}},
                {"detected_by", std::string("connection")},
                {"workers", std::vector<int64_t>(gone.begin(), gone.end())},
                {"ranks", std::vector<int64_t>(members.begin(), members.end())},
                {"kind", std::string("node")}});
  if (job_.phase == Phase::kWaiting) {
    if (sizing_) {
      sizing_->note_nodes();
    }
    return;
  }
  if (job_.round.ending().released()) {
    died_late(members, 1, what, "");
    return;
  }
  if (job_.placement.first_node() == event.node &&
      replacement_.replaceability_of(event.node) != Replaceability::kOnly) {
    // It may have recorded a decision that nobody else knows of (step_commit.h): no verdict is safe any more.
    phases_.end(1, what + ", and with it what rank 0 knew of the last step", "");
    return;
  }
  replacement_.lose(event.node, what);
  if (job_.placement.unassigned().empty()) {
    keep_spares(job_);
    phases_.gather();  // gathering may have waited for exits on that node
    return;
  }
  replacement_.reassign_lost_nodes();
  if (members.empty() && (job_.phase == Phase::kForming || job_.phase == Phase::kRunning)) {
    phases_.check_finished();  // its members had exited with 0 already, and are not missed
  } else {
    if (!job_.placement.unassigned().empty()) {
      replacement_.tell_of_waiting(event.node);
    }
    member_died(members.empty() ? 0 : members.front(), true, 1, what, "");
  }
}

void Membership::note_fault(const WorkerDied& event, const Worker& worker, const std::string& because) {
  std::vector<Field> fields = {{"worker", int64_t{event.worker}}};
  if (worker.taken) {
    fields.push_back({"rank", int64_t{worker.rank}});
  }
  fields.insert(fields.end(), {{"pid", worker.pid},
                               {"detected_by", event.detected_by},
                               {"signal", int64_t{event.signal}},
                               {"exit_code", int64_t{event.exit_code}},
                               {"kind", std::string(event.unfit.empty() ? "death" : "unfit")}});
  job_.journal("fault_detected", because, std::move(fields));
}

void Membership::member_died(Rank rank, bool recoverable, int exit_code, const std::string& what,
                             const std::string& traceback) {
  if (job_.round.ending().released()) {
    died_late({rank}, exit_code, what, traceback);
    return;
  }
  phases_.note_fault();
  switch (job_.phase) {
    case Phase::kForming:
    case Phase::kRunning: {
      const FaultKind kind = job_.survivors_recoverable(recoverable) ? FaultKind::kDeath : FaultKind::kPlainDeath;
      take_rung(Fault{kind, rank, job_.current_step(), exit_code, what, traceback});
      break;
    }
    case Phase::kSealing:
      phases_.conclude_if_sealed();
      break;
    default:
      phases_.gather();
  }
}

// All steps are done, and the others may still be writing their last files: they are left to finish. Any rank that
// waits for the dead one is interrupted.
void Membership::died_late(const std::vector<Rank>& ranks, int exit_code, const std::string& what,
                           const std::string& traceback) {
  if (ranks.empty()) {
    return;
  }
  job_.round.ending().die_late(ranks, {exit_code, what, traceback});
  if (job_.round.ending().anybody_called_again()) {
    job_.journal("late_death", what + " between two recoverable functions: another process takes part in the next one",
                 {{"ranks", std::vector<int64_t>(ranks.begin(), ranks.end())}});
  } else if (const size_t others = job_.round.members().size() - job_.round.ending().exited().size(); others > 0) {
    job_.say("late_death",
             what + " after the training function had returned on all ranks: " +
                 (others == 1 ? "the other one is" : "the " + std::to_string(others) + " others are") +
                 " left to finish; the job then ends, unless another recoverable function follows",
             {{"ranks", std::vector<int64_t>(ranks.begin(), ranks.end())}, {"others", static_cast<int64_t>(others)}});
    phases_.release();
  }
  phases_.check_finished();
}

void Membership::on(const WorkerExited& event) {
  Worker* worker = job_.roster.find(event.worker);
  if (worker == nullptr) {
    return;
  }
  if (worker->status == Status::kGone) {
    confirm_exit(event.worker);
    return;
  }
  const Status before = worker->status;
  const std::string what = who_text(worker->taken, worker->rank, event.worker, worker->pid) + " exited with code 0";
  job_.retire(event.worker);
  if (before == Status::kMember) {
    member_left(worker->rank, worker->recoverable, what);
  } else if (before == Status::kStarting && worker->taken && job_.cause != Cause::kReplace) {
    job_.placement.leave(worker->rank);
    phases_.gather();
  } else {
    candidate_lost(*worker, true, 1, what, "");
  }
}

void Membership::member_left(Rank rank, bool recoverable, const std::string& what) {
  job_.round.ending().exit(rank);
  switch (job_.phase) {
    case Phase::kRunning:
      phases_.check_finished();
      break;
    case Phase::kForming: {
      if (!recoverable) {
        phases_.check_finished();  // a plain script answers no Prepare: its exit is its only message
        phases_.check_left_behind();
        break;
      }
      const FaultKind kind = job_.survivors_recoverable(false) ? FaultKind::kDeath : FaultKind::kPlainDeath;
      take_rung(Fault{kind, rank, job_.current_step(), 1, what + " before its generation had started", ""});
      break;
    }
    case Phase::kSealing:
      phases_.conclude_if_sealed();
      break;
    default:
      phases_.gather();
  }
}

// A spare, or a worker that was to get a rank, is lost before it became a member.
void Membership::candidate_lost(const Worker& worker, bool counts, int exit_code, const std::string& what,
                                const std::string& traceback) {
  Roster::LostStarts& lost = job_.roster.lost_starts(worker.node);
  lost.in_a_row += counts ? 1 : 0;
  if (!worker.taken) {
    keep_spares(job_);
    return;
  }
  if (lost.in_a_row > job_.config.start_failures) {
    phases_.end(
        exit_code == 0 ? 1 : exit_code,
        what + ": " + std::to_string(lost.in_a_row) + " workers of its node in a row were lost before they had joined",
        traceback);
    return;
  }
  phases_.gather();
}

void Membership::confirm_exit(WorkerId worker) {
  if (job_.roster.confirm_exit(worker)) {
    phases_.gather();
  }
}

// ---- user code raised, or a link broke ----------------------------------------------------------------------------

void Membership::on(const WorkerFaulted& event) {
  const Worker* worker = job_.roster.find(event.worker);
  if (event.identity != job_.round.identity() || job_.round.ending().released() || worker == nullptr ||
      worker->status != Status::kMember) {
    return;
  }
  const std::string what =
      event.digests
          ? event.what  // the words will show who is wrong; not necessarily the one that noticed
          : who_text(true, worker->rank, event.worker, worker->pid) +
                (event.step == 0      ? " failed before its first step: "
                 : event.after_commit ? " failed after the commit of step " + std::to_string(event.step) + ": "
                                      : " failed at step " + std::to_string(event.step) + ": ") +
                event.what;
  std::vector<Field> fields;
  if (!event.digests) {
    fields = {{"worker", int64_t{event.worker}}, {"rank", int64_t{worker->rank}}, {"pid", worker->pid}};
  }
  fields.insert(fields.end(), {{"detected_by", std::string(event.digests ? "vote" : "worker")},
                               {"signal", int64_t{0}},
                               {"exit_code", int64_t{0}},
                               {"kind", std::string(event.link      ? "link"
                                                    : event.digests ? "digests"
                                                                    : "exception")},
                               {"step", static_cast<int64_t>(event.step)}});
  job_.journal("fault_detected", what, std::move(fields));
  if (event.fatal && !gives_up_growth(worker->rank, what)) {
    phases_.end(1, what, event.traceback);
    return;
  }
  if (event.link) {
    replacement_.link_reported(worker->node);
  }
  // Ranks that raise in one attempt are one fault; after a Seal, the interruption itself raised.
  if (job_.phase == Phase::kForming || job_.phase == Phase::kRunning) {
    const FaultKind lives = event.link ? FaultKind::kLink : event.digests ? FaultKind::kDigests : FaultKind::kException;
    const FaultKind kind = job_.survivors_recoverable(true) ? lives : FaultKind::kPlainDeath;
    // Each end of a link reports its own step: one may still wait for the previous step, or for the generation. Both
    // mean the step that does not get done.
    const Step step = event.link ? std::max(event.step, job_.current_step()) : event.step;
    Fault fault{kind, worker->rank, step, 1, what, event.traceback};
    fault.after_commit = event.after_commit;
    take_rung(std::move(fault));
  }
}

// ---- the ladder ---------------------------------------------------------------------------------------------------

void Membership::take_rung(Fault fault) {
  if (fault.kind != FaultKind::kNoSource && gives_up_growth(fault.rank, fault.what)) {
    return;
  }
  if (fault.rank < job_.round.members().size()) {
    const NodeId node = job_.round.members()[fault.rank].node;
    fault.node = fault.kind == FaultKind::kLink ? replacement_.end_to_blame(node) : node;
    fault.replaceability = replacement_.replaceability_of(fault.node);
  }
  const LadderDecision decision = ladder_.on_fault(fault, job_.now);
  std::vector<Field> fields = {{"rung", std::string(name(decision.rung))}};
  if (decision.rung == Rung::kReplaceNode) {
    fields.push_back({"bad_node", int64_t{decision.node}});
  }
  job_.journal("rung", decision.because, std::move(fields));
  phases_.note_fault();
  switch (decision.rung) {
    case Rung::kRedo:
    case Rung::kReplace:
      phases_.seal(fault.what);
      break;
    case Rung::kReplaceNode:
      replacement_.give_up(decision.node);
      phases_.seal(decision.because);
      break;
    case Rung::kRestartWithState:
      renewal_.begin();
      phases_.seal(decision.because);
      break;
    case Rung::kRestart:
      phases_.restart(decision.because);
      break;
    case Rung::kEnd:
      phases_.end(decision.exit_code, decision.because, decision.traceback);
      break;
  }
}

void Membership::take_found() {
  while (std::optional<Fault> fault = phases_.take_found()) {
    if (job_.phase != Phase::kEnded) {
      take_rung(*std::move(fault));
    }
  }
}

bool Membership::gives_up_growth(Rank rank, const std::string& what) {
  const std::optional<std::string> because = sizing_ ? sizing_->give_up_growth(rank, what) : std::nullopt;
  if (because) {
    phases_.seal(*because);
  }
  return because.has_value();
}

}  // namespace keepstep::brain
