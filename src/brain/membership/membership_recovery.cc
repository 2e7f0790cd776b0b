// The second part of the membership brain: from a fault to the next gathering. Which rung it takes is in
// membership_rungs.cc.

#include <algorithm>
#include <iterator>
#include <utility>

#include "brain/membership/membership.h"
#include "brain/membership/membership_text.h"

namespace keepstep::brain {
namespace {

// torchrun's job exits with 1 when a signal ended a worker.
int exit_code_of(const WorkerDied& event) { return event.signal == 0 ? event.exit_code : 1; }

}  // namespace

// ---- somebody is gone ---------------------------------------------------------------------------------------------

void Membership::on(const WorkerDied& event) {
  Worker* worker = roster_.find(event.worker);
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
  // The early notice is enough where only a replacement follows. Elsewhere the exit code decides: wait for it.
  if (!confirmed && (round_.released() || was_starting || (was_member && !worker->recoverable))) {
    return;
  }
  worker->pid = event.pid != 0 ? event.pid : worker->pid;
  const std::string what = who_text(worker->taken, worker->rank, event.worker, worker->pid) + " " + how_text(event);
  note_fault(event, *worker, what);
  retire(event.worker);
  if (was_member) {
    fence(event.worker, what);
    member_died(worker->rank, worker->recoverable, exit_code_of(event), what, event.traceback);
    return;
  }
  // A script that fails would fail again; a worker whose health check failed says nothing about the script.
  if (was_starting && event.signal == 0 && event.exit_code != 0 && event.unfit.empty() && !ever_formed_) {
    end(event.exit_code, what + " before it asked for a rank", event.traceback);
    return;
  }
  if (!confirmed) {
    fence(event.worker, what);
  }
  // The unfit are counted by their agent, which gives its node up.
  candidate_lost(*worker, event.unfit.empty(), exit_code_of(event), what, event.traceback);
}

void Membership::on(const WorkerHung& event) {
  const Worker* worker = roster_.find(event.worker);
  if (worker == nullptr || worker->status != Status::kMember || event.identity != round_.identity()) {
    return;
  }
  const Rank rank = worker->rank;
  const std::string what = who_text(true, rank, event.worker, event.pid) + " hangs: " + event.because;
  journal("fault_noticed", what,
          {{"worker", int64_t{event.worker}},
           {"rank", int64_t{rank}},
           {"pid", event.pid},
           {"noticed_by", std::string("hang")},
           {"signal", int64_t{-1}},
           {"exit_code", int64_t{0}},
           {"kind", std::string("hang")},
           {"idle_s", std::chrono::duration<double>(event.idle).count()}});
  if (!worker->recoverable || round_.released()) {
    kill(event.worker, what);  // the exit of such a worker decides what follows
    return;
  }
  retire(event.worker);
  fence(event.worker, what);
  member_died(rank, true, 1, what, "");
}

// All that a node had is gone at once: one fault, whatever it held.
void Membership::on(const NodeLost& event) {
  if (nodes_.erase(event.node) == 0) {
    return;
  }
  roster_.lost_starts(event.node) = {};
  round_.lose(event.node);
  holdings_.lose(event.node);
  if (leaving_ == event.node) {
    leaving_.reset();
  }
  const std::string what = "node " + std::to_string(event.node) + " is lost: " + event.because;
  std::vector<Rank> members;
  for (const auto& [id, worker] : roster_.all()) {
    if (worker.node == event.node && worker.status == Status::kMember) {
      members.push_back(worker.rank);
    }
  }
  const std::vector<WorkerId> gone = lose_workers_of(event.node);
  leaving_nodes_.erase(event.node);
  journal("fault_noticed", what,
          {{"lost_node", int64_t{event.node}},
           {"noticed_by", std::string("connection")},
           {"workers", std::vector<int64_t>(gone.begin(), gone.end())},
           {"ranks", std::vector<int64_t>(members.begin(), members.end())},
           {"kind", std::string("node")}});
  if (phase_ == Phase::kWaiting) {
    return;
  }
  if (round_.released()) {
    died_late(members, 1, what, "");
    return;
  }
  if (placement_.first_node() == event.node && place_of(event.node) != NodePlace::kOnly) {
    // It may have recorded a decision that nobody else has heard of (step_commit.h): no verdict is safe any more.
    end(1, what + ", and with it what rank 0 knew of the last step", "");
    return;
  }
  placement_.lose_home(event.node);
  if (placement_.homeless().empty()) {
    keep_spares();
    gather();  // it may have waited for exits on that node
    return;
  }
  node_loss_ = what;
  homeless_since_ = now_;
  house();
  if (members.empty() && (phase_ == Phase::kForming || phase_ == Phase::kRunning)) {
    check_finished();  // they had exited with 0 already, and left nothing that is missed
  } else {
    if (!placement_.homeless().empty()) {
      tell_of_waiting(event.node);
    }
    member_died(members.empty() ? 0 : members.front(), true, 1, what, "");
  }
}

// Nothing else happens until then: whoever looks at the job must know what it waits for.
void Membership::tell_of_waiting(NodeId lost) {
  const std::vector<Rank> homeless = placement_.homeless_of(lost);
  const std::string ends = seconds_text(config_.node_timeout);
  const std::string come = ". Start `keepstep run` there again, or on another machine: its ranks wait ";
  say("node_awaited",
      node_loss_ +
          (config_.elastic
               ? ", and no other node is ready" + come + seconds_text(config_.elastic->faulty_scale_down_timeout) +
                     " for a node (faultyScaleDownTimeoutInSeconds), then the job goes on without them; where "
                     "it may not be so small, it ends after " +
                     ends + " more (--node-timeout)"
               : ", and no spare node waits (--spare-nodes)" + come + ends +
                     " for a node (--node-timeout), then the job ends"),
      {{"lost_node", int64_t{lost}},
       {"ranks", std::vector<int64_t>(homeless.begin(), homeless.end())},
       {"for_s", std::chrono::duration<double>(node_timeout()).count()}});
}

void Membership::note_fault(const WorkerDied& event, const Worker& worker, const std::string& because) {
  std::vector<Field> fields = {{"worker", int64_t{event.worker}}};
  if (worker.taken) {
    fields.push_back({"rank", int64_t{worker.rank}});
  }
  fields.insert(fields.end(), {{"pid", worker.pid},
                               {"noticed_by", event.noticed_by},
                               {"signal", int64_t{event.signal}},
                               {"exit_code", int64_t{event.exit_code}},
                               {"kind", std::string(event.unfit.empty() ? "death" : "unfit")}});
  journal("fault_noticed", because, std::move(fields));
}

void Membership::member_died(Rank rank, bool recoverable, int exit_code, const std::string& what,
                             const std::string& traceback) {
  if (round_.released()) {
    died_late({rank}, exit_code, what, traceback);
    return;
  }
  after_fault_ = true;
  switch (phase_) {
    case Phase::kForming:
    case Phase::kRunning: {
      const FaultKind kind = survivors_recoverable(recoverable) ? FaultKind::kDeath : FaultKind::kPlainDeath;
      take_rung(Fault{kind, rank, current_step(), exit_code, what, traceback});
      break;
    }
    case Phase::kSealing:
      conclude_if_sealed();
      break;
    default:
      gather();
  }
}

// All steps are done, and the others may still write their last files: they are left to it. Whoever waits for the dead
// is interrupted.
void Membership::died_late(const std::vector<Rank>& ranks, int exit_code, const std::string& what,
                           const std::string& traceback) {
  if (ranks.empty()) {
    return;
  }
  for (const Rank rank : ranks) {
    round_.exit(rank);
  }
  round_.late_deaths.push_back({exit_code, what, traceback});
  if (const size_t others = round_.members().size() - round_.exited().size(); others > 0) {
    say("late_death",
        what + " after the training function had returned on all ranks: " +
            (others == 1 ? "the other one is" : "the " + std::to_string(others) + " others are") +
            " left to finish, then the job ends",
        {{"ranks", std::vector<int64_t>(ranks.begin(), ranks.end())}, {"others", static_cast<int64_t>(others)}});
    release();
  }
  check_finished();
}

bool Membership::survivors_recoverable(bool the_lost_one_was) const {
  bool any = the_lost_one_was;
  for (const Member& member : round_.members()) {
    if (!alive(member)) {
      continue;
    }
    if (!roster_.at(member.worker).recoverable) {
      return false;
    }
    any = true;
  }
  return any;
}

void Membership::on(const WorkerExited& event) {
  Worker* worker = roster_.find(event.worker);
  if (worker == nullptr) {
    return;
  }
  if (worker->status == Status::kGone) {
    confirm_exit(event.worker);
    return;
  }
  const Status before = worker->status;
  const std::string what = who_text(worker->taken, worker->rank, event.worker, worker->pid) + " exited with code 0";
  retire(event.worker);
  if (before == Status::kMember) {
    member_left(worker->rank, worker->recoverable, what);
  } else if (before == Status::kStarting && worker->taken && cause_ != Cause::kReplace) {
    placement_.leave(worker->rank);
    gather();
  } else {
    candidate_lost(*worker, true, 1, what, "");
  }
}

void Membership::member_left(Rank rank, bool recoverable, const std::string& what) {
  round_.exit(rank);
  switch (phase_) {
    case Phase::kRunning:
      check_finished();
      break;
    case Phase::kForming: {
      if (!recoverable) {
        check_finished();  // a plain script answers no Prepare: its end is all it says
        check_left_behind();
        break;
      }
      const FaultKind kind = survivors_recoverable(false) ? FaultKind::kDeath : FaultKind::kPlainDeath;
      take_rung(Fault{kind, rank, current_step(), 1, what + " before its generation had started", ""});
      break;
    }
    case Phase::kSealing:
      conclude_if_sealed();
      break;
    default:
      gather();
  }
}

// A spare, or a worker that was to get a rank, is lost before it was a member.
void Membership::candidate_lost(const Worker& worker, bool counts, int exit_code, const std::string& what,
                                const std::string& traceback) {
  Roster::LostStarts& lost = roster_.lost_starts(worker.node);
  lost.in_a_row += counts ? 1 : 0;
  if (!worker.taken) {
    keep_spares();
    return;
  }
  if (lost.in_a_row > config_.start_failures) {
    end(exit_code == 0 ? 1 : exit_code,
        what + ": " + std::to_string(lost.in_a_row) + " workers of its node in a row were lost before they had joined",
        traceback);
    return;
  }
  gather();
}

void Membership::confirm_exit(WorkerId worker) {
  if (roster_.confirm_exit(worker)) {
    gather();
  }
}

std::vector<WorkerId> Membership::lose_workers_of(NodeId node) {
  std::vector<WorkerId> lived = roster_.lose(node);
  for (const WorkerId id : lived) {
    retire(id);
  }
  return lived;
}

// ---- user code raised, or a link broke ----------------------------------------------------------------------------

void Membership::on(const WorkerFaulted& event) {
  const Worker* worker = roster_.find(event.worker);
  if (event.identity != round_.identity() || round_.released() || worker == nullptr ||
      worker->status != Status::kMember) {
    return;
  }
  const std::string what =
      event.digests
          ? event.what  // who is wrong, the words will tell; it need not be the one that found it
          : who_text(true, worker->rank, event.worker, worker->pid) +
                (event.step == 0      ? " failed before its first step: "
                 : event.after_commit ? " failed after the commit of step " + std::to_string(event.step) + ": "
                                      : " failed at step " + std::to_string(event.step) + ": ") +
                event.what;
  std::vector<Field> fields;
  if (!event.digests) {
    fields = {{"worker", int64_t{event.worker}}, {"rank", int64_t{worker->rank}}, {"pid", worker->pid}};
  }
  fields.insert(fields.end(), {{"noticed_by", std::string(event.digests ? "vote" : "worker")},
                               {"signal", int64_t{0}},
                               {"exit_code", int64_t{0}},
                               {"kind", std::string(event.link      ? "link"
                                                    : event.digests ? "digests"
                                                                    : "exception")},
                               {"step", static_cast<int64_t>(event.step)}});
  journal("fault_noticed", what, std::move(fields));
  if (event.fatal && !gives_up_growth(worker->rank, what)) {
    end(1, what, event.traceback);
    return;
  }
  link_reports_[worker->node] += event.link;
  // Ranks that raise in one attempt are one fault; after a Seal it is the interruption that raised.
  if (phase_ == Phase::kForming || phase_ == Phase::kRunning) {
    const FaultKind lives = event.link ? FaultKind::kLink : event.digests ? FaultKind::kDigests : FaultKind::kException;
    const FaultKind kind = survivors_recoverable(true) ? lives : FaultKind::kPlainDeath;
    // Each end of a link says where it stood itself: one may still wait for the step before, or for the generation. All
    // mean the step that does not come about.
    const Step step = event.link ? std::max(event.step, current_step()) : event.step;
    Fault fault{kind, worker->rank, step, 1, what, event.traceback};
    fault.after_commit = event.after_commit;
    take_rung(std::move(fault));
  }
}

// ---- the seal, the verdict ----------------------------------------------------------------------------------------

void Membership::seal(const std::string& because) {
  phase_ = Phase::kSealing;
  because_ = because;
  pausing_ = false;
  std::set<Rank> awaited;
  for (const Member& member : round_.members()) {
    if (alive(member)) {
      awaited.insert(awaited.end(), member.rank);
    }
  }
  round_.seal(std::move(awaited));
  holdings_.forget_copies();
  sent_at_ = now_;
  emit(Seal{round_.identity(), because});
  conclude_if_sealed();
}

void Membership::on(const Sealed& event) {
  if (phase_ != Phase::kSealing || event.identity != round_.identity()) {
    return;
  }
  if (round_.take(event)) {
    sent_at_ = now_;
  }
  if (!round_.has_lost(event.node)) {
    holdings_.note_copies(event);
  }
  conclude_if_sealed();
}

// A member whose node sent no word of it is dead there, and the notice is on its way: without waiting for it, the last
// survivor's death could pass for a verdict at the floor. Before Activate nobody can have voted, and a node that missed
// Prepare knows nothing of its newcomers: that it answered is enough. Afterwards a node whose members are all dead is
// awaited too, as long as others live: it may know that one of them had not voted.
void Membership::conclude_if_sealed() {
  if (round_.awaits_words()) {
    return;
  }
  // A lost node never answers, nor does one of the same name that came back: its agent is another.
  const bool all_answered = (!round_.activated() && !holdings_.sharded()) || round_.all_nodes_answered();
  // Where state is sharded, nodes without a living member are awaited too: they hold copies.
  const bool nobody = !holdings_.sharded() && std::none_of(round_.members().begin(), round_.members().end(),
                                                           [this](const Member& m) { return alive(m); });
  if (all_answered || nobody) {
    conclude();
  }
}

// The word of a member that died after it was sealed still counts: what it proves stays true.
void Membership::conclude() {
  const std::vector<SealedWord> words = round_.all_words();
  journal("sealed", because_, {{"words", words_text(words)}, {"nodes", static_cast<int64_t>(round_.nodes_answered())}});
  const bool nobody_left =
      std::none_of(round_.members().begin(), round_.members().end(), [this](const Member& m) { return alive(m); });
  if (nobody_left && !holdings_.sharded() && (version_ > 0 || round_.activated())) {
    take_rung(Fault{FaultKind::kNoSource, 0, current_step(), 1, "no worker that holds the state is left", ""});
    return;
  }
  const Verdict reached = decide(round_.identity(), version_, words, round_.has_several_nodes());
  const std::optional<Verdict> found = whole(reached);
  if (!found) {
    return;
  }
  const Verdict& verdict = *found;
  if (reached.version > version_) {
    remember_formed();  // who committed a step had formed, also where that step is done again
  }
  if (verdict.version > version_) {
    roster_.forget_lost_starts();
    ladder_.on_progress(verdict.version);
    link_reports_.clear();
  }
  version_ = verdict.version;
  progress_ = std::max(progress_, version_);
  note_what_they_hold();
  journal_verdict(verdict, reached.version);
  decided_ = Decide{round_.identity(), verdict};
  if (const auto outcome = round_.outcome(version_); verdict.forward && outcome) {
    decided_->mean_loss = outcome->mean_loss;
    decided_->flags = outcome->flags;
  }
  emit(*decided_);
  if (!judge(words)) {
    return;
  }
  placement_.survive();
  cause_ = Cause::kReplace;
  phase_ = Phase::kGathering;
  vacate();
  renew();
  resize();
  gather();
}

// Without a word of one: it died. Or its node missed Prepare; then it still stands where it was sealed before.
void Membership::note_what_they_hold() {
  for (const Member& member : round_.members()) {
    const auto found = round_.words().find(member.rank);
    if (found != round_.words().end()) {
      holdings_.note(member.worker, version_once_told(found->second, version_));
    } else if (round_.activated()) {
      holdings_.note(member.worker, std::nullopt);
    }
  }
}

// `resharded`: by other ranks, so that processes are no sources, only copies. `only`: what these nodes have; null:
// all. Nothing: no version is whole.
std::optional<Holdings::Kept> Membership::kept(const Verdict& verdict, bool resharded, const std::set<NodeId>* only,
                                               std::string* missing) const {
  return holdings_.newest_kept(verdict, round_.identity(), living_words(only), resharded, only, missing);
}

std::vector<SealedWord> Membership::living_words(const std::set<NodeId>* only) const {
  std::vector<SealedWord> living;
  for (const auto& [rank, word] : round_.words()) {
    const Member& member = round_.members()[rank];
    if (alive(member) && (only == nullptr || only->contains(member.node))) {
      living.push_back(word);
    }
  }
  return living;
}

// The same. Nothing: there is none, and the ladder took over.
std::optional<Holdings::Kept> Membership::kept_or_rung(const Verdict& verdict, bool resharded,
                                                       const std::set<NodeId>* only) {
  std::string missing;
  std::optional<Holdings::Kept> found = kept(verdict, resharded, only, &missing);
  if (!found) {
    take_rung(Fault{FaultKind::kNoSource, 0, current_step(), 1, missing, ""});
  }
  return found;
}

// Sharded state may have to go back to a version that is whole. Nothing: there is none, and the ladder took over.
std::optional<Verdict> Membership::whole(const Verdict& verdict) {
  if (!holdings_.sharded()) {
    return verdict;
  }
  const std::optional<Holdings::Kept> found = kept_or_rung(verdict, false, nullptr);
  return found ? std::optional(found->verdict) : std::nullopt;
}

// Whom the verdict counted on may have died since, or have no ranks any more. False: no version is whole any more, and
// the ladder took over.
bool Membership::still_whole() {
  if (!holdings_.sharded() || !decided_ || decided_->identity != round_.identity()) {
    return true;
  }
  const std::set<NodeId> nodes = placement_.nodes();
  const std::optional<Holdings::Kept> found = kept_or_rung(decided_->verdict, holdings_.resharded(), &nodes);
  if (!found) {
    return false;
  }
  holdings_.keep(*found);
  if (found->verdict.version != version_) {
    journal_verdict(found->verdict, std::exchange(version_, found->verdict.version));
  }
  return true;
}

// `reached`: the version before it turned out that not all of it is left.
void Membership::journal_verdict(const Verdict& verdict, Version reached) {
  std::vector<Field> fields = {{"step", static_cast<int64_t>(verdict.forward ? version_ : version_ + 1)},
                               {"version", static_cast<int64_t>(version_)},
                               {"verdict", std::string(verdict.forward ? "forward" : "redo")}};
  if (reached > version_) {
    fields.push_back({"redone_steps", static_cast<int64_t>(reached - version_)});
  }
  journal("verdict", verdict.because, std::move(fields));
}

}  // namespace keepstep::brain
