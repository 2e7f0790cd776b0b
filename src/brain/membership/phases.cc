#include "brain/membership/phases.h"

#include <algorithm>
#include <utility>

#include "brain/membership/staffing.h"
#include "brain/require.h"
#include "brain/text.h"

namespace keepstep::brain {

void Phases::find(Fault fault) {
  require(!found_, "a fault is found before the rung of another one is taken");
  found_ = std::move(fault);
}

// ---- gathering ----------------------------------------------------------------------------------------------------

void Phases::start_if_enough() {
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

void Phases::gather() {
  if (job_.phase != Phase::kGathering || !job_.placement.unassigned().empty()) {
    return;
  }
  while (!job_.placement.empty().empty()) {
    fill(job_, *job_.placement.empty().begin());
  }
  if (!job_.placement.waits_for_workers() && !job_.roster.awaits_exits() && !all_left()) {
    prepare();
  }
}

// A script that never asks for a rank: its processes just end. Returns true in that case; then the job is over, one way
// or another.
bool Phases::all_left() {
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

void Phases::prepare() {
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
                  job_.holdings.kept_in(),
                  job_.functions};
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

void Phases::send_prepare() {
  sent_at_ = job_.now;
  job_.emit(job_.round.prepare());
}

// A plain rank exited while others already wait to form a process group with it: it will never come.
void Phases::check_left_behind() {
  if (job_.phase == Phase::kForming && job_.round.all_wait_for_exited()) {
    end(1,
        rank_text(*job_.round.ending().exited().begin()) + " exited with code 0, but " +
            rank_text(job_.round.answers().begin()->first) +
            " waits for all ranks in a process group; do all take the same path?",
        "");
  }
}

void Phases::activate() {
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
      find(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, what, ""});
      return;
    }
    // Functions after the first one start with the state that their processes brought along, if any did.
    const bool starts = job_.version == 0 && (activate.sources.empty() || (job_.functions > 0 && !job_.ever_formed));
    if (starts && !job_.holdings.sharded()) {
      const Rank first = activate.sources.empty() ? activate.targets.front() : activate.sources.front();
      activate.sources = {first};
      activate.targets.clear();
      for (const Member& member : job_.round.members()) {
        if (member.rank != first) {
          activate.targets.push_back(member.rank);
        }
      }
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

void Phases::send_activate() {
  sent_at_ = job_.now;
  job_.emit(*job_.round.activated());
}

// ---- running ------------------------------------------------------------------------------------------------------

// If this comes after the verdict, it is too late: the round is still the old one, but the slots belong to the next
// generation.
void Phases::formed() {
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

void Phases::remember_formed() {
  job_.ever_formed = true;
  job_.placement.form(job_.round.members());
}

// Once a generation has formed, only its members are still needed, alive or not.
void Phases::forget_the_gone() {
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

void Phases::check_finished() {
  if (job_.round.ending().anybody_called_again()) {
    const std::optional<Rank> other = job_.round.ending().not_called_again(job_.round.members());
    if (!other) {
      next_function();
    } else if (job_.round.ending().exited().contains(*other)) {
      end(1,
          rank_text(*other) + " ended its script, but " + rank_text(job_.round.ending().first_called_again()) +
              " entered another recoverable function and waits for all ranks; do all take the same path?",
          "");
    }
    return;
  }
  if (job_.round.all_exited()) {
    if (!job_.round.ending().late_deaths().empty()) {
      std::string what;
      for (const Ending::LateDeath& each : job_.round.ending().late_deaths()) {
        what += (what.empty() ? "" : ", and ") + each.what;
      }
      end(job_.round.ending().late_deaths().front().exit_code,
          what +
              " after the training function had returned on all ranks: all steps are committed, but what was still to "
              "be written there may be missing",
          job_.round.ending().late_deaths().front().traceback);
    } else if (!begins_again()) {
      end(0, "all ranks finished", "");
    }
    return;
  }
  if (job_.round.all_through() && !job_.round.ending().released()) {
    job_.round.ending().release();
    job_.journal("finished", "the training function returned on all ranks");
    release();
  }
}

void Phases::release() {
  sent_at_ = job_.now;
  job_.emit(Release{job_.round.identity(),
                    job_.round.ending().late_deaths().empty() ? "" : job_.round.ending().late_deaths().front().what});
}

void Phases::pause() {
  sent_at_ = job_.now;
  job_.emit(sizing_->pause());
}

bool Phases::resize() {
  std::optional<Fault> fault = sizing_ ? sizing_->resize() : std::nullopt;
  if (!fault) {
    return true;
  }
  find(*std::move(fault));
  return false;
}

// All members of a plain script have exited with 0. True: the job continues.
bool Phases::begins_again() {
  const std::optional<Sizing::Resize> wanted = sizing_ ? sizing_->begins_again() : std::nullopt;
  if (!wanted) {
    return false;
  }
  const uint32_t before = sizing_->replicas();
  clear_for_restart(wanted->because);
  const bool fits = resize();
  sizing_->began_again(before, *wanted);
  if (fits) {
    gather();
  }
  return true;
}

// ---- the end, and time --------------------------------------------------------------------------------------------

void Phases::restart(const std::string& because) {
  clear_for_restart(because);
  gather();
}

void Phases::clear_for_restart(const std::string& because) {
  const Version newest = std::max({job_.version, job_.progress, job_.dead_had});
  const Version origin = std::min(newest, job_.holdings.origin());
  job_.journal("restart", because, {{"lost_steps", static_cast<int64_t>(newest - origin)}});
  for (const Member& member : job_.round.members()) {
    if (job_.alive(member)) {
      job_.end_worker(member.worker, because);
      job_.roster.await_exit(member.worker);
    }
  }
  for (const auto& [id, worker] : job_.roster.all()) {
    if (worker.left && worker.status != Status::kGone) {
      job_.end_worker(id, because);  // it has a state that the new start must not mistake for its own
      job_.roster.await_exit(id);
    }
  }
  start_over(Cause::kRestart, because);
}

void Phases::start_over(Cause cause, const std::string& because) {
  job_.because = because;
  job_.placement.forget_formed();
  job_.round = Round(job_.round.identity());  // late news of the old generation must not count for the new start
  job_.decided.reset();
  corruption_.forget();
  renewal_.forget();
  replacement_.cancel_vacating();
  if (sizing_) {
    sizing_->stop_pausing();
  }
  job_.version = job_.holdings.origin();
  job_.progress = job_.version;
  job_.dead_had = 0;
  job_.cause = cause;
  job_.phase = Phase::kGathering;
}

// All living members wait for a rank in another recoverable function: the job starts again with these processes.
// Waiting spares are still in the function that is over: new ones replace them.
void Phases::next_function() {
  const std::string because = "all ranks returned from the training function, and entered another one";
  ++job_.functions;
  job_.journal("next_function", because, {{"functions", int64_t{job_.functions}}});
  for (const Member& member : job_.round.members()) {
    if (job_.alive(member)) {
      job_.roster.at(member.worker).status = Status::kParked;
    }
  }
  for (const auto& [id, worker] : job_.roster.all()) {
    if (worker.status != Status::kGone && !job_.round.is_member(id, worker.rank)) {
      job_.end_worker(id, because);
      job_.roster.ask_for_exit(id);
    }
  }
  job_.holdings.start_again(job_.round.identity().generation);
  ladder_.start_again();
  job_.ever_formed = false;
  start_over(Cause::kStart, because);
  for (const NodeId node : job_.placement.nodes()) {
    if (!job_.nodes.contains(node)) {
      replacement_.lose(node, "node " + std::to_string(node) + " was lost between two recoverable functions");
    }
  }
  replacement_.reassign_lost_nodes();
  for (const auto& [node, endpoint] : job_.nodes) {
    start_spares(job_, node, because);
  }
  gather();
}

void Phases::end(int exit_code, const std::string& message, const std::string& traceback) {
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

void Phases::repeat_unanswered() {
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
  } else if (job_.round.ending().released()) {
    release();
  } else if (job_.phase == Phase::kRunning && !job_.round.formed()) {
    send_activate();
  } else if (job_.phase == Phase::kRunning && pausing) {
    pause();
  }
}

}  // namespace keepstep::brain
