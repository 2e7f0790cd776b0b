#include "brain/membership/membership.h"

#include <algorithm>
#include <utility>

#include "brain/membership/staffing.h"
#include "brain/text.h"

namespace keepstep::brain {

Membership::Membership(MembershipConfig config)
    : job_(std::move(config)),
      ladder_(job_.config.ladder),
      deadlines_(job_),
      replacement_(job_, ladder_),
      corruption_(job_),
      renewal_(job_) {
  if (job_.config.elastic) {
    sizing_.emplace(job_);
  }
}

Effects Membership::step(const Event& event, Time now) {
  job_.now = now;
  const bool tick = std::holds_alternative<Tick>(event);
  const auto forget_view = [this] {
    if (sizing_) {
      sizing_->forget_view();
    }
  };
  if (!tick) {
    forget_view();
  }
  if (job_.phase != Phase::kEnded) {
    std::visit([this](const auto& happened) { on(happened); }, event);
  }
  if (!tick || !job_.effects.empty()) {
    forget_view();  // only ticks that change nothing need not look at all ranks again
  }
  return std::exchange(job_.effects, {});
}

// ---- gathering ----------------------------------------------------------------------------------------------------

void Membership::on(const NodeJoined& event) {
  if (event.endpoint.port_base + job_.most_ranks_of_a_node() > 65536) {
    const std::string what = "node " + std::to_string(event.node) + " announced port base " +
                             std::to_string(event.endpoint.port_base) + ", too high for the ports of " +
                             std::to_string(job_.most_ranks_of_a_node()) + " ranks";
    if (job_.phase == Phase::kWaiting) {
      end(1, what, "");
    } else {
      job_.journal("refused", what);
    }
    return;
  }
  const bool fresh = !job_.nodes.contains(event.node);
  const auto unused = std::count_if(job_.nodes.begin(), job_.nodes.end(),
                                    [this](const auto& node) { return job_.waits_unused(node.first); });
  const uint32_t most = job_.config.elastic ? job_.config.most_nodes : job_.config.nodes;
  if (fresh && job_.nodes.size() - static_cast<size_t>(unused) >= most + job_.config.spare_nodes) {
    job_.journal("refused", "node " + std::to_string(event.node) + " came when the job had all its nodes");
    return;
  }
  job_.nodes[event.node] = event.endpoint;
  if (fresh) {
    job_.bad_nodes.erase(event.node);  // another agent, maybe another machine; the ladder still counts its faults
  }
  if (job_.phase == Phase::kWaiting) {
    if (sizing_) {
      sizing_->note_nodes();
    }
    start_if_enough();
  } else if (fresh) {
    job_.journal("node_joined",
                 !job_.placement.homeless().empty() ? "it takes the place of a lost node"
                 : sizing_                          ? "it gets ready while training goes on"
                                                    : "it waits as a spare",
                 {{"joined_node", int64_t{event.node}}});
    replacement_.house();
    start_spares(job_, event.node, "node " + std::to_string(event.node) + " gets ready");
    gather();
  }
}

void Membership::start_if_enough() {
  const auto first_spare = job_.config.spare_nodes == 0 ? job_.nodes.end() : job_.nodes.lower_bound(job_.config.nodes);
  const bool enough =
      sizing_ ? sizing_->enough_nodes() : std::distance(job_.nodes.begin(), first_spare) == int64_t{job_.config.nodes};
  if (!enough) {
    return;
  }
  job_.phase = Phase::kGathering;
  job_.because = "the job starts";
  sizing_ ? sizing_->start() : start_workers(job_);
}

void Membership::on(const WorkerParked& event) {
  Worker* worker = job_.roster.find(event.worker);
  if (worker == nullptr || worker->status != Status::kStarting) {
    return;
  }
  worker->status = Status::kParked;
  if (worker->taken) {
    job_.placement.parked(worker->rank);
  }
  worker->pid = event.pid;
  worker->killed_at.reset();
  job_.journal("parked", worker->taken ? rank_text(worker->rank) + " counts on it" : "no rank needs it yet",
               {{"worker", int64_t{event.worker}}, {"pid", event.pid}});
  replacement_.house();
  gather();
}

void Membership::on(const WorkerRecoverable& event) {
  if (Worker* worker = job_.roster.find(event.worker)) {
    worker->recoverable = true;
    worker->recoverable_since = job_.now;
    deadlines_.watch(event.worker);
  }
}

void Membership::gather() {
  if (job_.phase != Phase::kGathering || !job_.placement.homeless().empty()) {
    return;
  }
  while (!job_.placement.empty().empty()) {
    fill(job_, *job_.placement.empty().begin());
  }
  if (!job_.placement.waits_for_workers() && !job_.roster.awaits_exits() && !all_left()) {
    prepare();
  }
}

// A script that never asks for a rank: its processes just end. True if so; then the job is over, one way or another.
bool Membership::all_left() {
  const std::vector<Slot>& slots = job_.placement.slots();
  const auto stays = std::find_if(slots.begin(), slots.end(), [](const Slot& slot) { return !slot.left; });
  const auto left = std::find_if(slots.begin(), slots.end(), [](const Slot& slot) { return slot.left; });
  if (left == slots.end()) {
    return false;
  }
  if (stays == slots.end()) {
    end(0, "all ranks finished", "");
    return true;
  }
  end(1,
      rank_text(static_cast<Rank>(left - slots.begin())) + " exited with code 0 before it asked for a rank, but " +
          rank_text(static_cast<Rank>(stays - slots.begin())) + " waits for all ranks; do all take the same path?",
      "");
  return true;
}

// ---- forming ------------------------------------------------------------------------------------------------------

void Membership::prepare() {
  if (!still_whole()) {
    return;
  }
  if (!job_.ever_formed && job_.version < job_.holdings.origin()) {
    job_.version = job_.holdings.origin();
    job_.progress = std::max(job_.progress, job_.version);
  }
  const Identity before = job_.round.identity();
  const Identity identity{before.term, before.generation + 1};
  job_.holdings.begin(identity.generation, job_.version, job_.placement.world(),
                      !job_.decided || job_.decided->identity != before);
  restarts_ += std::exchange(after_fault_, false) ? 1 : 0;
  Prepare prepare{identity,
                  job_.version,
                  job_.placement.table(job_.nodes),
                  {},
                  job_.because,
                  sizing_ && sizing_->resized(),
                  restarts_,
                  job_.holdings.sharding(),
                  job_.holdings.kept_in()};
  std::vector<int64_t> workers;
  std::vector<int64_t> newcomers;
  for (Rank rank = 0; rank < job_.placement.world(); ++rank) {
    const Slot& slot = job_.placement.at(rank);
    Worker& worker = job_.roster.at(slot.holder);
    worker.status = Status::kMember;
    const bool newcomer = job_.placement.newcomer(rank);
    prepare.members.push_back(
        Member{rank, slot.holder, worker.node, newcomer, newcomer ? slot.formed_holder : kNoWorker});
    workers.push_back(slot.holder);
    if (newcomer) {
      newcomers.push_back(rank);
    }
  }
  job_.round = Round(std::move(prepare));
  job_.phase = Phase::kForming;
  deadlines_.prepared();
  job_.journal("generation_prepared", job_.because,
               {{"generation", int64_t{identity.generation}},
                {"version", static_cast<int64_t>(job_.version)},
                {"ranks", static_cast<int64_t>(job_.round.members().size())},
                {"workers", workers},
                {"newcomers", newcomers},
                {"replaced_by", std::string(replaced_by(job_, newcomers))}});
  send_prepare();
}

void Membership::send_prepare() {
  sent_at_ = job_.now;
  job_.emit(job_.round.prepare());
}

void Membership::on(const Ready& event) {
  Worker* worker = job_.roster.find(event.worker);
  if (job_.phase != Phase::kForming || event.identity != job_.round.identity() || worker == nullptr ||
      worker->status != Status::kMember || !job_.round.answer(worker->rank, event.state)) {
    return;
  }
  worker->killed_at.reset();
  if (event.sharded) {
    job_.holdings.shard();
  }
  sent_at_ = job_.now;  // thousands of answers may take longer than the wait for one
  job_.journal("rank_ready", "it left the old step",
               {{"rank", int64_t{worker->rank}},
                {"worker", int64_t{event.worker}},
                {"state", std::string(name(event.state.kind))},
                {"version", static_cast<int64_t>(event.state.version)}});
  if (job_.round.all_answered()) {
    activate();
  } else {
    check_left_behind();
  }
}

// A plain rank ended while others already wait for it to form a process group with them: nothing will ever come.
void Membership::check_left_behind() {
  if (job_.phase == Phase::kForming && job_.round.all_wait_for_exited()) {
    end(1,
        rank_text(*job_.round.exited().begin()) + " exited with code 0, but " +
            rank_text(job_.round.answers().begin()->first) +
            " waits for all ranks in a process group; do all take the same path?",
        "");
  }
}

void Membership::activate() {
  Activate activate{job_.round.identity(), job_.version, {}, {}, false};
  const bool protects = std::any_of(job_.round.members().begin(), job_.round.members().end(),
                                    [this](const Member& member) { return job_.roster.at(member.worker).recoverable; });
  if (protects) {
    for (const auto& [rank, state] : job_.round.answers()) {
      const bool clean = state == StateWord{StateKind::kClean, job_.version};
      (clean ? activate.sources : activate.targets).push_back(rank);
    }
    if (activate.sources.empty() && job_.version > job_.holdings.origin() && !job_.holdings.sharded()) {
      const std::string what = "no clean copy of step " + std::to_string(job_.version) + " is left";
      take_rung(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, what, ""});
      return;
    }
    if (activate.sources.empty() && job_.version == 0 && !job_.holdings.sharded()) {
      activate.sources.push_back(activate.targets.front());
      activate.targets.erase(activate.targets.begin());
      activate.compare = true;
    }
  }
  job_.phase = Phase::kRunning;
  job_.round.activate(activate);
  job_.journal("activated", activate.compare ? "a new start: all compare with rank 0" : "all members are ready",
               {{"version", static_cast<int64_t>(job_.version)},
                {"sources", std::vector<int64_t>(activate.sources.begin(), activate.sources.end())},
                {"targets", std::vector<int64_t>(activate.targets.begin(), activate.targets.end())}});
  send_activate();
}

void Membership::send_activate() {
  sent_at_ = job_.now;
  job_.emit(*job_.round.activated());
}

// ---- running ------------------------------------------------------------------------------------------------------

void Membership::on(const Formed& event) {
  if (event.identity == job_.round.identity()) {
    formed();
  }
}

void Membership::on(const Progress& event) {
  if (event.identity != job_.round.identity() || !job_.round.activated() || event.version <= job_.progress) {
    return;
  }
  job_.progress = event.version;
  job_.roster.forget_lost_starts();
  ladder_.on_progress(event.version);
  replacement_.forget_reports();
  job_.round.step();
  formed();
  forget_the_gone();
  keep_spares(job_);
  if (const std::optional<Corruption::Dismissed> liar = corruption_.judge_by_redo(event)) {
    member_died(liar->rank, true, 1, liar->because, "");
  }
}

// After the verdict this comes too late: the round is still the old one, but the slots are those of the next
// generation.
void Membership::formed() {
  const bool of_members = job_.phase == Phase::kRunning || job_.phase == Phase::kSealing;
  if (of_members && job_.round.form()) {
    remember_formed();
    job_.roster.forget_lost_starts();
    job_.journal("formed", "all members are clean at the generation's version",
                 {{"version", static_cast<int64_t>(job_.version)}});
    if (sizing_) {
      sizing_->formed();
    }
    if (renewal_.goes_on()) {
      seal("the restart of all processes goes on: the new ones have the state, now the others are replaced");
    }
    forget_the_gone();
  }
}

void Membership::remember_formed() {
  job_.ever_formed = true;
  job_.placement.form(job_.round.members());
}

// Of a generation that formed: only its members are still asked for, alive or not.
void Membership::forget_the_gone() {
  if (!job_.round.formed() || job_.phase != Phase::kRunning) {
    return;
  }
  const std::vector<WorkerId> forgotten = job_.roster.forget_the_gone([this](WorkerId id, const Worker& worker) {
    return corruption_.suspects(id) || job_.round.is_member(id, worker.rank);
  });
  for (const WorkerId id : forgotten) {
    job_.holdings.forget(id);
  }
}

// A save outlives the ranks that it is of, so this may be news of a generation that is no more. It counts unless a
// later one began below it: that one does these steps again, maybe with other bits, and a start that went on from the
// old ones would mix two histories. Its rank 0 has the save given up, or taken away (docs/design/checkpoints.md).
// "Began" is that it was prepared: its ranks were told the version, and act on it, whatever else comes.
void Membership::on(const Saved& event) {
  if (event.version <= job_.holdings.origin()) {
    return;
  }
  const std::optional<Version> again = job_.holdings.begun_below(event.version, event.generation);
  if (job_.ever_formed && again) {
    job_.journal("orphan_save",
                 "step " + std::to_string(event.version) + " was saved after the job had begun again from step " +
                     std::to_string(*again) + ": it does not count",
                 {{"version", static_cast<int64_t>(event.version)}});
    return;
  }
  if (job_.phase == Phase::kGathering && job_.cause == Cause::kRestart && job_.round.members().empty()) {
    job_.journal("orphan_save",
                 "step " + std::to_string(event.version) +
                     " was saved though the ranks that it is of are gone: the job goes on from there",
                 {{"version", static_cast<int64_t>(event.version)},
                  {"regained_steps", static_cast<int64_t>(event.version - job_.version)}});
    job_.version = event.version;
    job_.progress = event.version;
  }
  job_.holdings.saved(event.version);
  if (!job_.ever_formed && job_.phase == Phase::kForming) {
    job_.because = "the job goes on from step " + std::to_string(event.version) + ", which was saved before";
    prepare();
  }
}

void Membership::on(const WorkerFinished& event) {
  const Worker* worker = job_.roster.find(event.worker);
  if (event.identity != job_.round.identity() || job_.phase != Phase::kRunning || worker == nullptr ||
      worker->status != Status::kMember) {
    return;
  }
  job_.round.finish(worker->rank);
  check_finished();
}

void Membership::check_finished() {
  if (job_.round.all_exited()) {
    if (!job_.round.late_deaths.empty()) {
      std::string what;
      for (const Round::LateDeath& each : job_.round.late_deaths) {
        what += (what.empty() ? "" : ", and ") + each.what;
      }
      end(job_.round.late_deaths.front().exit_code,
          what +
              " after the training function had returned on all ranks: all steps are committed, but what was still to "
              "be written there may be missing",
          job_.round.late_deaths.front().traceback);
    } else if (!begins_again()) {
      end(0, "all ranks finished", "");
    }
    return;
  }
  if (job_.round.all_through() && !job_.round.released()) {
    job_.round.release();
    job_.journal("finished", "the training function returned on all ranks");
    release();
  }
}

void Membership::release() {
  sent_at_ = job_.now;
  job_.emit(Release{job_.round.identity(), job_.round.late_deaths.empty() ? "" : job_.round.late_deaths.front().what});
}

// ---- another size -------------------------------------------------------------------------------------------------

void Membership::on(const ScaleRequested& event) {
  if (!sizing_) {
    job_.journal("refused", "the job is not elastic: its size cannot be changed (--nnodes MIN:MAX)");
  } else if (sizing_->scale(event)) {
    consider_size();
  }
}

void Membership::on(const PolicyChanged& event) {
  if (!sizing_) {
    job_.journal("refused", "the job is not elastic: it has no policy to change (--nnodes MIN:MAX)");
  } else if (sizing_->configure(event)) {
    consider_size();
  }
}

void Membership::on(const MostUseful& event) {
  const std::optional<std::string> impossible = sizing_ ? sizing_->limit(event) : std::nullopt;
  if (impossible) {
    end(1, *impossible, "");
  }
}

void Membership::on(const NodeLeaves& event) {
  if (sizing_ && sizing_->leave(event)) {
    consider_size();
  }
}

void Membership::consider_size() {
  using What = Sizing::Next::What;
  if (!sizing_ || job_.placement.world() == 0) {
    return;
  }
  if (job_.is_plain()) {
    keep_spares(job_);
    sizing_->part_from_leavers();
  }
  const Sizing::Next next = sizing_->next();
  switch (next.what) {
    case What::kNothing:
      break;
    case What::kResize:
      resize();
      replacement_.house();
      gather();
      break;
    case What::kPause:
      pause();
      break;
    case What::kSeal:
      seal(next.because);
      break;
  }
}

void Membership::pause() {
  sent_at_ = job_.now;
  job_.emit(sizing_->pause());
}

void Membership::on(const WorkerPaused& event) {
  const Worker* worker = job_.roster.find(event.worker);
  const bool plain = job_.is_plain();
  const bool runs = job_.phase == Phase::kRunning || (job_.phase == Phase::kForming && plain);
  if (!sizing_ || event.identity != job_.round.identity() || !runs || worker == nullptr ||
      worker->status != Status::kMember || !job_.round.pause(worker->rank)) {
    return;
  }
  sent_at_ = job_.now;
  sizing_->note_pause();
  if (job_.round.paused() < job_.round.members().size() || plain) {
    return;
  }
  formed();  // a rank pauses only after that
  const std::string because = sizing_->all_paused();
  if (job_.phase == Phase::kRunning) {
    seal(because);
  }
}

void Membership::resize() {
  if (std::optional<Fault> fault = sizing_ ? sizing_->resize() : std::nullopt) {
    take_rung(*std::move(fault));
  }
}

// All members of a plain script have exited with 0. True: the job goes on.
bool Membership::begins_again() {
  const std::optional<Sizing::Resize> wanted = sizing_ ? sizing_->begins_again() : std::nullopt;
  if (!wanted) {
    return false;
  }
  const uint32_t before = sizing_->replicas();
  clear_for_restart(wanted->because);
  resize();
  sizing_->began_again(before, *wanted);
  gather();
  return true;
}

// ---- the end, and time --------------------------------------------------------------------------------------------

void Membership::on(const StopRequested& event) { end(event.exit_code, event.because, ""); }

void Membership::end(int exit_code, const std::string& message, const std::string& traceback) {
  job_.phase = Phase::kEnded;
  std::string told = message;
  if (exit_code == 0) {
    for (const OutlivedFailure& each : ladder_.outlived()) {
      told += "\n" + outlived_text(each);
      job_.journal("failure_outlived", outlived_text(each),
                   {{"step", static_cast<int64_t>(each.first_step)},
                    {"last_step", static_cast<int64_t>(each.last_step)},
                    {"steps", int64_t{each.steps}},
                    {"skipped", each.skipped}});
    }
  }
  job_.journal("job_ended", message, {{"exit_code", int64_t{exit_code}}});
  job_.emit(EndJob{exit_code, told, traceback});
}

void Membership::on(const Tick&) {
  if (job_.phase == Phase::kWaiting && sizing_) {
    start_if_enough();
    return;
  }
  consider_size();
  // While the job goes on without them, all of them had exited with 0.
  const bool missed = job_.phase == Phase::kSealing || job_.phase == Phase::kGathering;
  if (const auto why = missed ? replacement_.nobody_came() : std::nullopt) {
    end(1, *why, "");
    return;
  }
  deadlines_.kill_the_late();
  if (job_.now - sent_at_ >= job_.config.repeat_after) {
    repeat_unanswered();
  }
}

void Membership::repeat_unanswered() {
  const bool pausing = sizing_ && sizing_->pausing();
  if (job_.phase == Phase::kSealing) {
    sent_at_ = job_.now;
    job_.emit(Seal{job_.round.identity(), job_.because});
  } else if (job_.phase == Phase::kForming) {
    if (job_.decided) {
      job_.emit(*job_.decided);
    }
    send_prepare();
    if (pausing) {
      pause();
    }
  } else if (job_.round.released()) {
    release();
  } else if (job_.phase == Phase::kRunning && !job_.round.formed()) {
    send_activate();
  } else if (job_.phase == Phase::kRunning && pausing) {
    pause();
  }
}

}  // namespace keepstep::brain
