#include "brain/node/node.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "brain/membership/membership_text.h"

namespace keepstep::brain {

namespace {

constexpr int kSigkill = 9;

Event nothing_left(WorkerId worker) { return WorkerDied{worker, 0, kSigkill, 0, "kill", ""}; }

template <typename T>
constexpr bool kIsOrder = std::is_same_v<T, Spawn> || std::is_same_v<T, Seal> || std::is_same_v<T, Decide> ||
                          std::is_same_v<T, Prepare> || std::is_same_v<T, Activate> || std::is_same_v<T, Kill> ||
                          std::is_same_v<T, Pause> || std::is_same_v<T, Release> || std::is_same_v<T, EndJob>;

}  // namespace

NodeEffects NodeBrain::step(const NodeEvent& event, Time now) {
  now_ = now;
  std::visit(
      [this](const auto& each) {
        if (!over_ || !kIsOrder<std::decay_t<decltype(each)>>) {
          on(each);
        }
      },
      event);
  return std::exchange(effects_, {});
}

const NodeBrain::Worker* NodeBrain::find(WorkerId id) const {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

// ---- orders of the coordinator ------------------------------------------------------------------------------------

void NodeBrain::on(const Spawn& event) {
  if (gone_.contains(event.worker)) {
    emit(Tell{nothing_left(event.worker)});  // a repetition that arrived after the worker's end
  } else if (workers_.try_emplace(event.worker).second) {
    emit(StartWorker{event});
  }
}

void NodeBrain::on(const Seal& event) {
  if (event.identity < identity()) {
    return;
  }
  const bool unknown = event.identity > identity();
  sealed_ = std::max(sealed_, event.identity);
  emit(SealWords{event.identity, unknown ? std::vector<Holder>() : holders(), unknown});
  if (!unknown) {
    emit(Interrupt{event.identity, living_members(), event.because});
  }
}

void NodeBrain::on(const Decide& event) {
  if (event.identity.generation > 0 && (event.identity == identity() || event.identity == before_)) {
    emit(Announce{event});
  }
}

void NodeBrain::on(const Prepare& event) {
  if (event.identity <= sealed_ || event.identity < identity()) {
    return;
  }
  if (event.identity != identity()) {
    begin(event);
  }
  if (!knows_all_members()) {
    return;  // one died for good in the meantime: the coordinator is about to seal this generation
  }
  for (const Member& member : prepared_->members) {
    assign(member);
  }
}

void NodeBrain::assign(const Member& member) {
  if (!workers_.at(member.worker).dead) {
    emit(Assign{member, entry_of(member)});
  }
}

void NodeBrain::begin(const Prepare& prepare) {
  before_ = identity();
  prepared_ = prepare;
  active_ = false;
  ready_.clear();
  if (prepare.resized) {
    resized_ = prepare.identity;
  }
  if (std::exchange(functions_, prepare.functions) != prepare.functions) {
    formed_ = {};  // no generation of the next function has
  }
  for (auto& [id, worker] : workers_) {
    worker.rank.reset();
    worker.ready = false;
  }
  emit(Begin{prepare, before_});
  for (const Member& member : prepare.members) {
    const auto found = workers_.find(member.worker);
    if (found == workers_.end()) {
      continue;
    }
    Worker& worker = found->second;
    worker.rank = member.rank;
    worker.had_rank = true;
    worker.leaving_since.reset();
    if (!member.newcomer && prepare.sharding == prepare.from) {  // others build their state, which may take long
      worker.leaving_since = now_;
    }
    if (prepare.resized) {
      emit(ForgetCapsules{member.worker});
    }
    inherit(member, prepare.resized);
  }
}

// The values that a rank's forward changed move with the rank. So do the copies that it keeps for others.
void NodeBrain::inherit(const Member& member, bool resized) {
  if (member.newcomer && workers_.contains(member.previous)) {
    emit(Inherit{member.previous, member.worker, !resized});
  }
}

const char* NodeBrain::entry_of(const Member& member) const {
  const Prepare& prepare = *prepared_;
  const bool held_before = member.previous != kNoWorker;
  if (prepare.identity.generation == 1 || (formed_ == Identity{} && !held_before && !prepare.resized)) {
    return "start";
  }
  if (!member.newcomer) {
    return prepare.resized ? "resize" : "recovery";
  }
  return prepare.resized && !held_before ? "joined" : "replacement";
}

void NodeBrain::on(const Activate& event) {
  if (!goes_on(event.identity)) {
    return;
  }
  const bool first = !std::exchange(active_, true);
  if (first) {
    emit(Forget{event.version, prepared_->from.number});
  }
  emit(GoOn{event, living_members(), first});
}

void NodeBrain::on(const Kill& event) {
  const auto found = workers_.find(event.worker);
  if (found == workers_.end()) {
    emit(Tell{nothing_left(event.worker)});
  } else if (found->second.end) {
    emit(Tell{*found->second.end});  // the coordinator may not have received it
  } else {
    emit(KillProcess{event.worker, ""});
  }
}

void NodeBrain::on(const Pause& event) {
  if (goes_on(event.identity)) {
    emit(TellPause{event, living_members()});
  }
}

void NodeBrain::on(const Release& event) {
  if (goes_on(event.identity)) {
    emit(TellRelease{event, living_members(), !event.because.empty()});
  }
}

void NodeBrain::on(const EndJob& event) {
  over_ = true;
  Close close{event, identity(), holders(), {}, {}};
  for (const auto& [id, worker] : workers_) {
    if (!worker.end) {
      (worker.had_rank ? close.ranks : close.spares).push_back(id);
    }
  }
  emit(std::move(close));
}

// ---- what workers do ----------------------------------------------------------------------------------------------

void NodeBrain::on(const WorkerDied& event) {
  if (event.signal != -1) {
    ended(event.worker, event);
    return;
  }
  const auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.dead) {
    return;
  }
  found->second.dead = true;
  emit(KillProcess{event.worker, ""});  // fencing: a process whose engine is gone must not continue on its own
  emit(Tell{event});
}

void NodeBrain::on(const WorkerExited& event) { ended(event.worker, event); }

void NodeBrain::ended(WorkerId id, const Event& how) {
  const auto found = workers_.find(id);
  if (found == workers_.end() || found->second.end) {
    return;
  }
  found->second.dead = true;
  found->second.end = how;
  emit(Tell{how});
  if (!found->second.had_rank) {
    give_back(found);
  }
}

// All are reported at once, when the last one is ready: nothing happens in the job before that. The next tick reports
// those that are ready anyway, as the coordinator kills those that are not.
void NodeBrain::on(const MemberReady& event) {
  const auto found = workers_.find(event.member.worker);
  if (found == workers_.end() || event.identity != identity()) {
    return;
  }
  found->second.leaving_since.reset();
  found->second.ready = true;
  ready_.push_back({event.member, now_});
  if (std::ranges::all_of(living_members(), [this](WorkerId each) { return workers_.at(each).ready; })) {
    tell_ready();
  }
}

void NodeBrain::tell_ready() {
  if (ready_.empty()) {
    return;
  }
  Ready ready{identity(), {}};
  for (auto& [member, since] : std::exchange(ready_, {})) {
    member.waited = now_ - since;
    ready.members.push_back(member);
  }
  emit(Tell{std::move(ready)});
}

void NodeBrain::on(const Formed& event) {
  emit(Tell{event});
  formed(event.identity);
}

void NodeBrain::on(const FormedByCommit& event) { formed(event.identity); }

// Until now a recovery could have needed a dead worker's memory (its word, its capsule). If the seal came first, it
// still can: the coordinator may have given its verdict before it heard that the generation formed.
void NodeBrain::formed(Identity identity) {
  if (identity != this->identity() || identity <= formed_) {
    return;
  }
  formed_ = identity;
  emit(ForgetUnused{});
  emit(HasFormed{identity});
  if (identity <= sealed_) {
    return;
  }
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    worker = worker->second.end && !worker->second.rank ? give_back(worker) : std::next(worker);
  }
}

NodeBrain::Workers::iterator NodeBrain::give_back(Workers::iterator worker) {
  emit(FreeMemory{worker->first});
  gone_.insert(worker->first);
  return workers_.erase(worker);
}

void NodeBrain::on(const Settled& event) { emit(Forget{std::nullopt, event.sharding}); }

void NodeBrain::on(const Attached& event) {
  if (prepared_ && !sealed() && knows_all_members()) {
    for (const Member& member : prepared_->members) {
      if (member.worker == event.worker) {
        assign(member);
      }
    }
  }
}

void NodeBrain::on(const LeaveLimit& event) {
  if (const auto found = workers_.find(event.worker); found != workers_.end()) {
    found->second.limit = event.limit;
  }
}

void NodeBrain::on(const Tick&) {
  tell_ready();
  for (auto& [id, worker] : workers_) {
    if (worker.leaving_since && worker.limit > Time{} && now_ - *worker.leaving_since > worker.limit && !worker.dead) {
      worker.leaving_since.reset();
      emit(KillProcess{id, "it did not leave its step within " + seconds_text(worker.limit)});
    }
  }
}

// ---- small helpers ------------------------------------------------------------------------------------------------

bool NodeBrain::knows_all_members() const {
  return std::ranges::all_of(prepared_->members, [this](const Member& each) { return workers_.contains(each.worker); });
}

// Includes the dead: what their words prove stays true (one that had not voted forces a redo, and its capsule of that
// step is not needed).
std::vector<Holder> NodeBrain::holders() const {
  std::vector<Holder> holders;
  if (prepared_) {
    for (const Member& member : prepared_->members) {
      if (workers_.contains(member.worker)) {
        holders.push_back({member.rank, member.worker});
      }
    }
  }
  return holders;
}

std::vector<WorkerId> NodeBrain::living_members() const {
  std::vector<WorkerId> living;
  if (prepared_) {
    for (const Member& member : prepared_->members) {
      const auto found = workers_.find(member.worker);
      if (found != workers_.end() && !found->second.dead) {
        living.push_back(member.worker);
      }
    }
  }
  return living;
}

}  // namespace keepstep::brain
