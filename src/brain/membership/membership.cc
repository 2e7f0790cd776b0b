#include "brain/membership/membership.h"

#include <algorithm>
#include <utility>

#include "brain/membership/membership_text.h"
#include "brain/require.h"

namespace keepstep::brain {

Membership::Membership(MembershipConfig config)
    : config_(std::move(config)), ladder_(config_.ladder), round_(Identity{config_.term, 0}) {
  require(config_.repeat_after > Time{}, "what is not answered is repeated after a time");
  require(config_.nodes >= 1 && config_.nodes <= kMaxTableEntries, "a job has 1 to 65535 nodes");
  if (config_.elastic) {
    require(config_.most_nodes >= config_.nodes && config_.ranks_per_node >= 1 && config_.ranks_per_replica >= 1 &&
                (config_.ranks_per_node % config_.ranks_per_replica == 0 ||
                 config_.ranks_per_replica % config_.ranks_per_node == 0),
            "an elastic job says how many nodes it may have, and its replicas fill nodes or parts of them");
    config_.world_size = config_.most_nodes * config_.ranks_per_node;
    elastic_.emplace(*config_.elastic);
  }
  require(config.world_size <= kMaxWorldSize && most_ranks_of_a_node() <= 65535, "too many ranks, or too many a node");
}

uint32_t Membership::most_ranks_of_a_node() const {
  return config_.elastic ? config_.ranks_per_node : (config_.world_size + config_.nodes - 1) / config_.nodes;
}

Effects Membership::step(const Event& event, Time now) {
  now_ = now;
  const bool tick = std::holds_alternative<Tick>(event);
  if (!tick) {
    size_view_.reset();
  }
  if (phase_ != Phase::kEnded) {
    std::visit([this](const auto& happened) { on(happened); }, event);
  }
  if (!tick || !effects_.empty()) {
    size_view_.reset();  // only ticks that change nothing need not look at all ranks again
  }
  return std::exchange(effects_, {});
}

// ---- gathering ----------------------------------------------------------------------------------------------------

void Membership::on(const NodeJoined& event) {
  if (event.endpoint.port_base + most_ranks_of_a_node() > 65536) {
    const std::string what = "node " + std::to_string(event.node) + " announced port base " +
                             std::to_string(event.endpoint.port_base) + ", too high for the ports of " +
                             std::to_string(most_ranks_of_a_node()) + " ranks";
    if (phase_ == Phase::kWaiting) {
      end(1, what, "");
    } else {
      journal("refused", what);
    }
    return;
  }
  const bool fresh = !nodes_.contains(event.node);
  const auto unused =
      std::count_if(nodes_.begin(), nodes_.end(), [this](const auto& node) { return waits_unused(node.first); });
  const uint32_t most = config_.elastic ? config_.most_nodes : config_.nodes;
  if (fresh && nodes_.size() - static_cast<size_t>(unused) >= most + config_.spare_nodes) {
    journal("refused", "node " + std::to_string(event.node) + " came when the job had all its nodes");
    return;
  }
  nodes_[event.node] = event.endpoint;
  if (fresh) {
    bad_nodes_.erase(event.node);  // another agent, maybe another machine; the ladder still counts its faults
  }
  if (phase_ == Phase::kWaiting) {
    if (!enough_since_ && nodes_.size() >= config_.nodes) {
      enough_since_ = now_;
    }
    if (enough_nodes()) {
      start();
    }
  } else if (fresh) {
    journal("node_joined",
            !placement_.homeless().empty() ? "it takes the place of a lost node"
            : elastic_                     ? "it gets ready while training goes on"
                                           : "it waits as a spare",
            {{"joined_node", int64_t{event.node}}});
    house();
    while (roster_.spares_on(event.node) < spares_of(event.node)) {
      spawn(event.node, true, "node " + std::to_string(event.node) + " gets ready");
    }
    gather();
  }
}

bool Membership::enough_nodes() const {
  if (elastic_) {
    const size_t units = nodes_.size() * (config_.ranks_per_node / unit_ranks());
    return nodes_.contains(0) && nodes_.size() >= config_.nodes && elastic_->largest_allowed(replicas_of(units)) > 0 &&
           (nodes_.size() >= config_.most_nodes || (enough_since_ && now_ - *enough_since_ >= config_.start_grace));
  }
  const auto first_spare = config_.spare_nodes == 0 ? nodes_.end() : nodes_.lower_bound(config_.nodes);
  return std::distance(nodes_.begin(), first_spare) == static_cast<int64_t>(config_.nodes);
}

// A node without ranks keeps as many workers ready as a lost node may have had ranks, unless its ranks were taken away.
uint32_t Membership::spares_of(NodeId node) const {
  if (waits_unused(node) || leaving_nodes_.contains(node)) {
    return 0;
  }
  if (elastic_) {
    return config_.spares + config_.ranks_per_node - placement_.ranks_on(node);
  }
  return config_.spares + (placement_.has_ranks(node) ? 0 : most_ranks_of_a_node());
}

// Each node gets its share of consecutive ranks, by node id; the first ones one more where it does not divide.
void Membership::start() {
  phase_ = Phase::kGathering;
  because_ = "the job starts";
  if (elastic_) {
    start_elastic();
    return;
  }
  Rank rank = 0;
  uint32_t index = 0;
  for (const auto& [node, endpoint] : nodes_) {
    uint32_t share = 0;  // a spare node's
    if (index < config_.nodes) {
      share = config_.world_size / config_.nodes + (index < config_.world_size % config_.nodes ? 1 : 0);
    }
    ++index;
    for (uint32_t local = 0; local < share; ++local, ++rank) {
      placement_.add(node, local);
      take(spawn(node, false, because_), rank, Origin::kStart);
    }
    const uint32_t spares = config_.spares + (share == 0 ? most_ranks_of_a_node() : 0);
    for (uint32_t spare = 0; spare < spares; ++spare) {
      spawn(node, true, because_);
    }
  }
}

void Membership::on(const WorkerParked& event) {
  Worker* worker = roster_.find(event.worker);
  if (worker == nullptr || worker->status != Status::kStarting) {
    return;
  }
  worker->status = Status::kParked;
  if (worker->taken) {
    placement_.parked(worker->rank);
  }
  worker->pid = event.pid;
  worker->killed_at.reset();
  journal("parked", worker->taken ? rank_text(worker->rank) + " counts on it" : "no rank needs it yet",
          {{"worker", int64_t{event.worker}}, {"pid", event.pid}});
  house();
  gather();
}

void Membership::on(const WorkerRecoverable& event) {
  if (Worker* worker = roster_.find(event.worker)) {
    worker->recoverable = true;
    worker->recoverable_since = now_;
    watch(event.worker);
  }
}

void Membership::gather() {
  if (phase_ != Phase::kGathering) {
    return;
  }
  if (!placement_.homeless().empty()) {
    return;
  }
  while (!placement_.empty().empty()) {
    fill(*placement_.empty().begin());
  }
  if (!placement_.waits_for_workers() && !roster_.awaits_exits() && !all_left()) {
    prepare();
  }
}

void Membership::fill(Rank rank) {
  const NodeId node = placement_.at(rank).node;
  const Origin fresh = cause_ == Cause::kStart ? Origin::kStart : Origin::kRestart;
  if (const WorkerId parked = roster_.free(node, Status::kParked); parked != kNoWorker) {
    take(parked, rank, cause_ == Cause::kReplace ? Origin::kSpare : fresh);
    return;
  }
  // A spare that is still starting is ahead of any worker that would start now.
  WorkerId starting = roster_.free(node, Status::kStarting);
  if (starting == kNoWorker) {
    starting = spawn(node, false, because_);
  }
  take(starting, rank, cause_ == Cause::kReplace ? Origin::kZygote : fresh);
}

// A script that never asks for a rank: its processes just end. True if so; then the job is over, one way or another.
bool Membership::all_left() {
  const std::vector<Slot>& slots = placement_.slots();
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
  if (!ever_formed_ && version_ < holdings_.origin()) {
    version_ = holdings_.origin();
    progress_ = std::max(progress_, version_);
  }
  const Identity before = round_.identity();
  const Identity identity{before.term, before.generation + 1};
  holdings_.begin(identity.generation, version_, placement_.world(), !decided_ || decided_->identity != before);
  restarts_ += std::exchange(after_fault_, false) ? 1 : 0;
  Prepare prepare{identity,
                  version_,
                  placement_.table(nodes_),
                  {},
                  because_,
                  resized_.has_value(),
                  restarts_,
                  holdings_.sharding(),
                  holdings_.kept_in()};
  std::vector<int64_t> workers;
  std::vector<int64_t> newcomers;
  for (Rank rank = 0; rank < placement_.world(); ++rank) {
    const Slot& slot = placement_.at(rank);
    Worker& worker = roster_.at(slot.holder);
    worker.status = Status::kMember;
    const bool newcomer = placement_.newcomer(rank);
    prepare.members.push_back(
        Member{rank, slot.holder, worker.node, newcomer, newcomer ? slot.formed_holder : kNoWorker});
    workers.push_back(slot.holder);
    if (newcomer) {
      newcomers.push_back(rank);
    }
  }
  round_ = Round(std::move(prepare));
  phase_ = Phase::kForming;
  prepared_at_ = now_;
  look_at_members_ = now_ + std::min(config_.interrupt_timeout, config_.start_timeout);
  journal("generation_prepared", because_,
          {{"generation", int64_t{identity.generation}},
           {"version", static_cast<int64_t>(version_)},
           {"ranks", static_cast<int64_t>(round_.members().size())},
           {"workers", workers},
           {"newcomers", newcomers},
           {"replaced_by", std::string(replaced_by(newcomers))}});
  send_prepare();
}

const char* Membership::replaced_by(const std::vector<int64_t>& newcomers) const {
  const auto any = [&](Origin origin) {
    return std::any_of(newcomers.begin(), newcomers.end(),
                       [&](int64_t rank) { return placement_.at(static_cast<Rank>(rank)).origin == origin; });
  };
  // The slowest kind names the whole: it is what the generation waited for.
  if (any(Origin::kRestart)) {
    return "restart";
  }
  if (any(Origin::kZygote)) {
    return "zygote";
  }
  if (any(Origin::kSpare)) {
    return "spare";
  }
  return any(Origin::kStart) ? "start" : "same process";
}

void Membership::send_prepare() {
  sent_at_ = now_;
  emit(round_.prepare());
}

void Membership::on(const Ready& event) {
  Worker* worker = roster_.find(event.worker);
  if (phase_ != Phase::kForming || event.identity != round_.identity() || worker == nullptr ||
      worker->status != Status::kMember || !round_.answer(worker->rank, event.state)) {
    return;
  }
  worker->killed_at.reset();
  if (event.sharded) {
    holdings_.shard();
  }
  sent_at_ = now_;  // thousands of answers may take longer than the wait for one
  journal("rank_ready", "it left the old step",
          {{"rank", int64_t{worker->rank}},
           {"worker", int64_t{event.worker}},
           {"state", std::string(name(event.state.kind))},
           {"version", static_cast<int64_t>(event.state.version)}});
  if (round_.all_answered()) {
    activate();
  } else {
    check_left_behind();
  }
}

// A plain rank ended while others already wait for it to form a process group with them: nothing will ever come.
void Membership::check_left_behind() {
  if (phase_ == Phase::kForming && round_.all_wait_for_exited()) {
    end(1,
        rank_text(*round_.exited().begin()) + " exited with code 0, but " + rank_text(round_.answers().begin()->first) +
            " waits for all ranks in a process group; do all take the same path?",
        "");
  }
}

void Membership::activate() {
  Activate activate{round_.identity(), version_, {}, {}, false};
  const bool protects = std::any_of(round_.members().begin(), round_.members().end(),
                                    [this](const Member& member) { return roster_.at(member.worker).recoverable; });
  if (protects) {
    for (const auto& [rank, state] : round_.answers()) {
      const bool clean = state == StateWord{StateKind::kClean, version_};
      (clean ? activate.sources : activate.targets).push_back(rank);
    }
    if (activate.sources.empty() && version_ > holdings_.origin() && !holdings_.sharded()) {
      const std::string what = "no clean copy of step " + std::to_string(version_) + " is left";
      take_rung(Fault{FaultKind::kNoSource, 0, current_step(), 1, what, ""});
      return;
    }
    if (activate.sources.empty() && version_ == 0 && !holdings_.sharded()) {
      activate.sources.push_back(activate.targets.front());
      activate.targets.erase(activate.targets.begin());
      activate.compare = true;
    }
  }
  phase_ = Phase::kRunning;
  round_.activate(activate);
  journal("activated", activate.compare ? "a new start: all compare with rank 0" : "all members are ready",
          {{"version", static_cast<int64_t>(version_)},
           {"sources", std::vector<int64_t>(activate.sources.begin(), activate.sources.end())},
           {"targets", std::vector<int64_t>(activate.targets.begin(), activate.targets.end())}});
  send_activate();
}

void Membership::send_activate() {
  sent_at_ = now_;
  emit(*round_.activated());
}

// ---- running ------------------------------------------------------------------------------------------------------

void Membership::on(const Formed& event) {
  if (event.identity == round_.identity()) {
    formed();
  }
}

void Membership::on(const Progress& event) {
  if (event.identity != round_.identity() || !round_.activated() || event.version <= progress_) {
    return;
  }
  progress_ = event.version;
  roster_.forget_lost_starts();
  ladder_.on_progress(event.version);
  link_reports_.clear();
  round_.step();
  formed();
  forget_the_gone();
  keep_spares();
  judge_by_redo(event);
}

// Once the verdict is out this is late: the round is of before, the slots already those of the generation that
// gathers.
void Membership::formed() {
  const bool of_members = phase_ == Phase::kRunning || phase_ == Phase::kSealing;
  if (of_members && round_.form()) {
    remember_formed();
    roster_.forget_lost_starts();
    journal("formed", "all members are clean at the generation's version",
            {{"version", static_cast<int64_t>(version_)}});
    resize_formed();
    renew_the_rest();
    forget_the_gone();
  }
}

void Membership::remember_formed() {
  ever_formed_ = true;
  placement_.form(round_.members());
}

// Of a generation that formed: only its members are still asked for, alive or not.
void Membership::forget_the_gone() {
  if (!round_.formed() || phase_ != Phase::kRunning) {
    return;
  }
  const std::vector<WorkerId> forgotten = roster_.forget_the_gone([this](WorkerId id, const Worker& worker) {
    const bool suspected = suspected_ && std::any_of(suspected_->said.begin(), suspected_->said.end(),
                                                     [id](const RankDigest& said) { return said.worker == id; });
    return suspected || round_.is_member(id, worker.rank);
  });
  for (const WorkerId id : forgotten) {
    holdings_.forget(id);
  }
}

// Only once a step of this generation is done: a recovery must not share the CPU with spares that start.
void Membership::keep_spares() {
  const bool runs = (phase_ == Phase::kRunning && round_.stepped()) || is_plain();
  if (!runs || round_.released() || round_.anybody_through()) {
    return;
  }
  if (config_.spares == 0 && config_.spare_nodes == 0 && !elastic_) {
    return;
  }
  for (const auto& [node, endpoint] : nodes_) {
    const uint32_t wanted = spares_of(node);
    Roster::LostStarts& lost = roster_.lost_starts(node);
    if (lost.in_a_row > config_.start_failures) {
      if (roster_.spares_on(node) < wanted && !std::exchange(lost.told, true)) {
        journal("spares_given_up",
                std::to_string(lost.in_a_row) + " spares of node " + std::to_string(node) +
                    " were lost in a row without progress",
                {{"given_up_node", int64_t{node}}});
      }
      continue;
    }
    while (roster_.spares_on(node) < wanted) {
      spawn(node, true, "the node keeps " + std::to_string(wanted) + " spares");
    }
  }
}

// A save outlives the ranks that it is of, so this may be news of a generation that is no more. It counts unless a
// later one began below it: that one does these steps again, maybe with other bits, and a start that went on from the
// old ones would mix two histories. Its rank 0 has the save given up, or taken away (docs/design/checkpoints.md).
// "Began" is that it was prepared: its ranks were told the version, and act on it, whatever else comes.
void Membership::on(const Saved& event) {
  if (event.version <= holdings_.origin()) {
    return;
  }
  const std::optional<Version> again = holdings_.begun_below(event.version, event.generation);
  if (ever_formed_ && again) {
    journal("orphan_save",
            "step " + std::to_string(event.version) + " was saved after the job had begun again from step " +
                std::to_string(*again) + ": it does not count",
            {{"version", static_cast<int64_t>(event.version)}});
    return;
  }
  if (phase_ == Phase::kGathering && cause_ == Cause::kRestart && round_.members().empty()) {
    journal("orphan_save",
            "step " + std::to_string(event.version) +
                " was saved though the ranks that it is of are gone: the job goes on from there",
            {{"version", static_cast<int64_t>(event.version)},
             {"regained_steps", static_cast<int64_t>(event.version - version_)}});
    version_ = event.version;
    progress_ = event.version;
  }
  holdings_.saved(event.version);
  if (!ever_formed_ && phase_ == Phase::kForming) {
    because_ = "the job goes on from step " + std::to_string(event.version) + ", which was saved before";
    prepare();
  }
}

void Membership::on(const WorkerFinished& event) {
  const Worker* worker = roster_.find(event.worker);
  if (event.identity != round_.identity() || phase_ != Phase::kRunning || worker == nullptr ||
      worker->status != Status::kMember) {
    return;
  }
  round_.finish(worker->rank);
  check_finished();
}

void Membership::check_finished() {
  if (round_.all_exited()) {
    if (!round_.late_deaths.empty()) {
      std::string what;
      for (const Round::LateDeath& each : round_.late_deaths) {
        what += (what.empty() ? "" : ", and ") + each.what;
      }
      end(round_.late_deaths.front().exit_code,
          what +
              " after the training function had returned on all ranks: all steps are committed, but what was still to "
              "be "
              "written there may be missing",
          round_.late_deaths.front().traceback);
    } else if (!begins_again()) {
      end(0, "all ranks finished", "");
    }
    return;
  }
  if (round_.all_through() && !round_.released()) {
    round_.release();
    journal("finished", "the training function returned on all ranks");
    release();
  }
}

void Membership::release() {
  sent_at_ = now_;
  emit(Release{round_.identity(), round_.late_deaths.empty() ? "" : round_.late_deaths.front().what});
}

// ---- the end, and time --------------------------------------------------------------------------------------------

void Membership::on(const StopRequested& event) { end(event.exit_code, event.because, ""); }

void Membership::end(int exit_code, const std::string& message, const std::string& traceback) {
  phase_ = Phase::kEnded;
  std::string told = message;
  if (exit_code == 0) {
    for (const OutlivedFailure& each : ladder_.outlived()) {
      told += "\n" + outlived_text(each);
      journal("failure_outlived", outlived_text(each),
              {{"step", static_cast<int64_t>(each.first_step)},
               {"last_step", static_cast<int64_t>(each.last_step)},
               {"steps", int64_t{each.steps}},
               {"skipped", each.skipped}});
    }
  }
  journal("job_ended", message, {{"exit_code", int64_t{exit_code}}});
  emit(EndJob{exit_code, told, traceback});
}

// An elastic job goes on smaller first, if it may.
Time Membership::node_timeout() const {
  return config_.node_timeout + (config_.elastic ? config_.elastic->faulty_scale_down_timeout : Time{});
}

void Membership::on(const Tick&) {
  if (phase_ == Phase::kWaiting && elastic_) {
    if (enough_nodes()) {
      start();
    }
    return;
  }
  consider_size();
  // While the job goes on without them, all of them had exited with 0.
  const bool missed = phase_ == Phase::kSealing || phase_ == Phase::kGathering;
  if (missed && !placement_.homeless().empty() && now_ - homeless_since_ >= node_timeout()) {
    end(1, node_loss_ + ", and no other node came within " + seconds_text(node_timeout()) + " to take its ranks", "");
    return;
  }
  kill_the_late();
  if (now_ - sent_at_ >= config_.repeat_after) {
    repeat_unanswered();
  }
}

void Membership::repeat_unanswered() {
  if (phase_ == Phase::kSealing) {
    sent_at_ = now_;
    emit(Seal{round_.identity(), because_});
  } else if (phase_ == Phase::kForming) {
    if (decided_) {
      emit(*decided_);
    }
    send_prepare();
    if (pausing_) {
      pause();
    }
  } else if (round_.released()) {
    release();
  } else if (phase_ == Phase::kRunning && !round_.formed()) {
    send_activate();
  } else if (phase_ == Phase::kRunning && pausing_) {
    pause();
  }
}

// Whose time has come as it was set. Things may stand otherwise now.
void Membership::kill_the_late() {
  if (phase_ == Phase::kForming && now_ >= look_at_members_) {
    look_at_members_ = Time::max();
    for (const Member& member : round_.members()) {
      watch(member.worker);
    }
  }
  for (WorkerId id = roster_.next_due(now_); id != kNoWorker; id = roster_.next_due(now_)) {
    const Worker& worker = roster_.at(id);
    if (const std::optional<Time> deadline = deadline_of(id, worker); deadline && *deadline <= now_) {
      kill(id, lateness_of(id, worker));
    } else {
      watch(id);
    }
  }
}

void Membership::watch(WorkerId id) {
  if (const std::optional<Time> deadline = deadline_of(id, roster_.at(id))) {
    roster_.look_again(id, *deadline);
  }
}

// When it is to be killed, or once more. Nothing: as things stand, never.
std::optional<Time> Membership::deadline_of(WorkerId id, const Worker& worker) const {
  std::optional<Time> deadline;
  if (roster_.is_ending(id)) {
    deadline = Time{};
  } else if (worker.status == Status::kStarting) {
    deadline = worker.spawned_at + config_.start_timeout;
  } else if (phase_ == Phase::kForming && worker.status == Status::kMember && worker.recoverable &&
             !round_.has_answered(worker.rank)) {
    // A plain script need not answer at all, and a newcomer may still load what it trains on.
    deadline = std::max(prepared_at_, worker.recoverable_since) +
               (builds(worker) ? config_.start_timeout : config_.interrupt_timeout);
  }
  return deadline && worker.killed_at ? std::max(*deadline, *worker.killed_at + config_.repeat_after) : deadline;
}

std::string Membership::lateness_of(WorkerId id, const Worker& worker) const {
  if (roster_.is_ending(id)) {
    return because_;
  }
  if (worker.status == Status::kStarting) {
    return "it did not ask for a rank within " + seconds_text(config_.start_timeout) + " of its start";
  }
  return rank_text(worker.rank) + (builds(worker)
                                       ? " did not get ready within " + seconds_text(config_.start_timeout)
                                       : " did not leave its step within " + seconds_text(config_.interrupt_timeout));
}

// A member that has to make its state first: a newcomer, or one of another division of it.
bool Membership::builds(const Worker& worker) const {
  return placement_.newcomer(worker.rank) || holdings_.sharding() != holdings_.kept_in();
}

// ---- small helpers ------------------------------------------------------------------------------------------------

bool Membership::alive(const Member& member) const { return roster_.at(member.worker).status == Status::kMember; }

void Membership::take(WorkerId id, Rank rank, Origin origin) {
  roster_.take(id, rank);
  placement_.give(rank, id, origin, roster_.at(id).status != Status::kStarting);
}

void Membership::retire(WorkerId id) {
  roster_.retire(id);
  const Worker& worker = roster_.at(id);
  if (!worker.taken) {
    return;
  }
  if (round_.is_member(id, worker.rank)) {
    round_.await_no_longer(worker.rank);
  }
  placement_.take_back(worker.rank, id);
}

WorkerId Membership::spawn(NodeId node, bool spare, const std::string& because) {
  const WorkerId id = roster_.add(node, now_);
  watch(id);
  journal("spawn_requested", because, {{"worker", int64_t{id}}, {"spare", spare}});
  emit(Spawn{node, id, spare, because});
  return id;
}

void Membership::kill(WorkerId id, const std::string& because) {
  Worker& worker = roster_.at(id);
  if (!std::exchange(worker.killed_at, now_)) {
    journal("kill", because, {{"worker", int64_t{id}}, {"pid", worker.pid}});
  }
  roster_.look_again(id, now_ + config_.repeat_after);
  emit(Kill{id, because, worker.node});
}

// The notice of a death may come before the exit: make sure of it. fault_noticed has told the journal why.
void Membership::fence(WorkerId id, const std::string& because) {
  emit(Kill{id, "fencing: " + because, roster_.at(id).node});
}

Step Membership::current_step() const { return std::max(version_, progress_) + 1; }

void Membership::journal(const char* event, const std::string& because, std::vector<Field> fields) {
  emit(Journal{event, because, std::move(fields)});
}

void Membership::say(const char* event, const std::string& because, std::vector<Field> fields) {
  emit(Journal{event, because, std::move(fields), true});
}

}  // namespace keepstep::brain
