// The membership brain's part for elastic jobs: how large the world is, and where its ranks are. The policy
// (elastic_policy.h) says how many replicas; here that becomes units: places of a node, or whole nodes, that come and
// go together.
//
// Newcomers get ready while training runs. Then all members pause at the end of a step, are sealed there, and the next
// generation has other slots. Survivors keep their process; their rank may be another one, because ranks have no gaps.
// Who has no rank any more waits as a spare, with its state, and is the first to get one again.

#include <algorithm>
#include <tuple>
#include <utility>

#include "brain/membership/membership.h"
#include "brain/membership/membership_text.h"

namespace keepstep::brain {
namespace {

// Why the size stays: capacity that flaps gives ever other reasons.
constexpr Time kSizeNewsEvery = std::chrono::seconds(1);
constexpr int kMostGrowthFailures = 3;  // of a node
constexpr Time kPostponedFor = std::chrono::milliseconds(100);

}  // namespace

// A replica of several nodes consists of whole nodes, any of them: the state is the same everywhere.
uint32_t Membership::unit_ranks() const { return std::min(config_.ranks_per_replica, config_.ranks_per_node); }

uint32_t Membership::replicas_of(size_t units) const {
  return static_cast<uint32_t>(units * unit_ranks() / config_.ranks_per_replica);
}

uint32_t Membership::replicas() const { return placement_.world() / config_.ranks_per_replica; }

// The first node holds rank 0 (it is the coordinator's), the others follow by their numbers.
void Membership::start_elastic() {
  const uint32_t groups = config_.ranks_per_node / unit_ranks();
  const uint32_t size = elastic_->largest_allowed(replicas_of(nodes_.size() * groups));
  std::vector<Unit> chosen;
  for (const auto& [node, endpoint] : nodes_) {
    for (uint32_t group = 0; group < groups && replicas_of(chosen.size()) < size; ++group) {
      chosen.push_back({.node = node, .group = group});
    }
  }
  settle(chosen);
  journal("elastic_start", "so many replicas can run on the nodes that came",
          {{"replicas", int64_t{size}},
           {"ranks", int64_t{placement_.world()}},
           {"nodes", static_cast<int64_t>(nodes_.size())}});
  for (Rank rank = 0; rank < placement_.world(); ++rank) {
    take(spawn(placement_.at(rank).node, false, because_), rank, Origin::kStart);
  }
  for (const auto& [node, endpoint] : nodes_) {
    for (uint32_t spare = spares_of(node); spare > 0; --spare) {
      spawn(node, true, because_);
    }
  }
}

// ---- what there is ------------------------------------------------------------------------------------------------

// Of all nodes that attend, by node and group. After a restart nobody is a member: all members' ranks get new
// processes.
std::vector<Placement::Unit> Membership::units() const {
  const uint32_t size = unit_ranks();
  const std::set<Placement::UnitKey> homeless = placement_.homeless_units(size);  // their node may still attend
  const std::map<Placement::UnitKey, Placement::UnitCount> counts = placement_.unit_counts(size);
  std::vector<Unit> all;
  for (const auto& [node, endpoint] : nodes_) {
    uint32_t parked = roster_.parked_on(node);
    const size_t first = all.size();
    for (uint32_t group = 0; group < config_.ranks_per_node / size; ++group) {
      const auto found = counts.find({node, group});
      const bool member = found != counts.end();
      const Placement::UnitCount count = member ? found->second : Placement::UnitCount{};
      if (homeless.contains({node, group}) || (!member && waits_unused(node))) {
        continue;
      }
      all.push_back({.node = node,
                     .group = group,
                     .member = member,
                     .whole = member && count.living == size,
                     .formed = member && count.formed == size,
                     .leaving = leaving_nodes_.contains(node)});
      // They go to the dead ranks first.
      parked -= member && !round_.members().empty() ? std::min(parked, size - count.living) : 0;
    }
    for (size_t i = first; i < all.size(); ++i) {
      if (!all[i].member && parked >= size) {
        all[i].ready = true;
        parked -= size;
      }
    }
  }
  return all;
}

ElasticView Membership::elastic_view(const std::vector<Unit>& all) const {
  size_t stay = 0;
  size_t ready = 0;
  size_t coming = 0;
  size_t leaving = 0;
  for (const Unit& unit : all) {
    if (unit.leaving) {
      leaving += unit.member ? 1 : 0;
    } else {
      ++(unit.member ? stay : unit.ready ? ready : coming);
    }
  }
  const uint32_t now = replicas();
  const uint32_t rest = replicas_of(stay + leaving);
  ElasticView view{.replicas = now,
                   .ready = replicas_of(stay + ready),
                   .missing = now - std::min(now, rest),
                   .leaving = rest - std::min(rest, replicas_of(stay)),
                   .useful = useful_ranks_ / config_.ranks_per_replica};
  view.coming = replicas_of(stay + ready + coming) - view.ready;
  for (const auto& [node, leave] : leaving_nodes_) {
    if (placement_.has_ranks(node)) {
      view.leave_by = std::min(view.leave_by.value_or(leave.by), leave.by);
    }
  }
  return view;
}

// ---- what is wanted -----------------------------------------------------------------------------------------------

void Membership::on(const ScaleRequested& event) {
  if (!elastic_) {
    journal("refused", "the job is not elastic: its size cannot be changed (--nnodes MIN:MAX)");
    return;
  }
  const std::string mistake = elastic_->scale_to(event.replicas);
  if (mistake.empty()) {
    journal("scale_requested", event.replicas ? "by a user" : "by a user: the policy decides again",
            {{"replicas", int64_t{event.replicas.value_or(0)}}});
    consider_size();
  } else {
    journal("refused", mistake);
  }
}

void Membership::on(const PolicyChanged& event) {
  if (!elastic_) {
    journal("refused", "the job is not elastic: it has no policy to change (--nnodes MIN:MAX)");
    return;
  }
  const std::vector<std::string> mistakes = elastic_->configure(event.config);
  for (const std::string& mistake : mistakes) {
    journal("refused", mistake);
  }
  if (mistakes.empty()) {
    config_.elastic = event.config;
    journal(
        "policy_changed", "by a user",
        {{"min_replicas", int64_t{event.config.min_replicas}}, {"max_replicas", int64_t{event.config.max_replicas}}});
    consider_size();
  }
}

void Membership::on(const MostUseful& event) {
  if (!elastic_ || (useful_ranks_ == event.ranks && even_sizes_ == event.sizes)) {
    return;
  }
  useful_ranks_ = event.ranks;
  even_sizes_ = event.sizes;
  journal("most_useful",
          event.sizes.empty() ? "a step has so many micro-batches, and each rank needs one"
                              : "each rank needs as many of a step's micro-batches as the others",
          {{"ranks", int64_t{event.ranks}}, {"sizes", std::vector<int64_t>(event.sizes.begin(), event.sizes.end())}});
  elastic_->only({});
  const uint32_t least = elastic_->smallest_allowed(1) * config_.ranks_per_replica;
  std::vector<uint32_t> even;
  for (const uint32_t ranks : event.sizes) {
    if (ranks % config_.ranks_per_replica == 0) {
      even.push_back(ranks / config_.ranks_per_replica);
    }
  }
  elastic_->only(even);
  if (!event.sizes.empty() && (even.empty() || elastic_->smallest_allowed(1) == 0)) {
    end(1,
        "each rank needs as many of a step's micro-batches as the others, and none of the sizes that the job may have "
        "shares them evenly: use another micro_batch or global_batch, or allow other sizes (--min-replicas, "
        "--replica-discrete-values)",
        "");
    return;
  }
  if (most_fed() == 0) {
    end(1,
        "the batches feed no more than " + std::to_string(event.ranks) + " ranks, each of which needs a micro-batch, " +
            "and the job may not have fewer than " + std::to_string(least) +
            ": use a smaller micro_batch or a larger global_batch, or allow fewer replicas (--min-replicas)",
        "");
  }
}

// Replicas. What can be had of the sizes that the job may have; 0: none.
uint32_t Membership::most_fed() const { return elastic_->largest_allowed(useful_ranks_ / config_.ranks_per_replica); }

void Membership::on(const NodeLeaves& event) {
  if (!elastic_ || !nodes_.contains(event.node)) {
    return;
  }
  if (phase_ == Phase::kWaiting ? event.node == 0 : placement_.first_node() == event.node) {
    journal("refused", "node " + std::to_string(event.node) +
                           " has rank 0 and the coordinator, and cannot leave: " + event.because);
    return;
  }
  const Time by = now_ + config_.elastic->graceful_shutdown_timeout;
  if (!leaving_nodes_.emplace(event.node, Leaving{event.because, by}).second) {
    return;
  }
  journal("node_leaves", event.because,
          {{"leaving_node", int64_t{event.node}},
           {"within_s", std::chrono::duration<double>(config_.elastic->graceful_shutdown_timeout).count()}});
  if (phase_ == Phase::kWaiting) {
    part_from_leavers();
    enough_since_ = nodes_.size() >= config_.nodes ? enough_since_ : std::nullopt;
  } else if (!placement_.has_ranks(event.node)) {
    resize_formed();
  } else {
    consider_size();
  }
}

// Asked at every tick, and when something happened that may change the answer.
void Membership::consider_size() {
  if (!elastic_ || placement_.world() == 0) {
    return;
  }
  const bool plain = is_plain();
  // After a restart nobody is left who would have to be interrupted.
  const bool nobody = std::none_of(round_.members().begin(), round_.members().end(),
                                   [this](const Member& member) { return alive(member); });
  const bool waits = phase_ == Phase::kGathering && !placement_.homeless().empty();
  const bool runs = phase_ == Phase::kRunning && round_.stepped() && !round_.released() && !round_.anybody_through();
  if (plain) {
    keep_spares();
    resize_formed();
  } else if ((!waits && !runs) || (postponed_at_ && now_ - *postponed_at_ < kPostponedFor)) {
    return;
  }
  if (!size_view_) {
    size_view_ = {elastic_view(units()), survivors_recoverable(false)};
  }
  if (!plain && !(waits && nobody) && !size_view_->recoverable) {
    return;
  }
  postponed_at_.reset();
  const ElasticView view = size_view_->elastic;
  ask_policy(view);
  if (waits) {
    resize();
    house();
    gather();
    return;
  }
  if (!resize_) {
    return;
  }
  // Who has to leave does not wait for the end of a long step longer than it may.
  const Time margin = config_.elastic->graceful_shutdown_timeout / 5;
  // Where that was not possible because of shards that only leavers have, they hand them over at the end of a step.
  if (!plain && view.leave_by && now_ + margin >= *view.leave_by && !(holdings_.sharded() && lacks_shards_)) {
    seal("the step is interrupted in its middle, because time is up for who leaves: " + resize_->because);
  } else if (!std::exchange(pausing_, true)) {
    stay_ = who_would_stay();
    pause();
  } else if (!plain && round_.paused() > 0 && now_ - paused_at_ >= config_.start_timeout) {
    seal("ranks that do not come to the end of their step hold up a change of size: " + resize_->because);
  }
}

void Membership::ask_policy(const ElasticView& view) {
  const ElasticDecision decision = elastic_->step(view, now_);
  if (decision.kind == ElasticDecision::Kind::kStay) {
    if (stays_because_ != decision.because && now_ - stays_said_at_ >= kSizeNewsEvery) {
      stays_because_ = decision.because;
      if (!stays_because_.empty()) {
        stays_said_at_ = now_;
        journal("size_kept", decision.because, decision.considered);
      }
    }
    if (resize_ && !is_plain()) {  // a plain script may have saved already
      journal("resize_dropped", "it is not wanted any more: " + resize_->because);
      resize_.reset();
    }
  } else if (!resize_ || resize_->replicas != decision.replicas) {
    resize_ = Resize{decision.replicas, decision.forced, decision.because};
    std::vector<Field> fields = {{"from", int64_t{view.replicas}}, {"to", int64_t{decision.replicas}}};
    fields.insert(fields.end(), decision.considered.begin(), decision.considered.end());
    journal("resize_planned", decision.because, std::move(fields));
  }
}

void Membership::pause() {
  sent_at_ = now_;
  emit(Pause{round_.identity(), resize_ ? resize_->because : because_, stay_});
}

void Membership::on(const WorkerPaused& event) {
  const Worker* worker = roster_.find(event.worker);
  const bool runs = phase_ == Phase::kRunning || (phase_ == Phase::kForming && is_plain());
  if (event.identity != round_.identity() || !runs || worker == nullptr || worker->status != Status::kMember ||
      !round_.pause(worker->rank)) {
    return;
  }
  sent_at_ = now_;
  paused_at_ = now_;
  if (round_.paused() < round_.members().size() || is_plain()) {
    return;
  }
  formed();  // nobody pauses before
  // They pause before their first step where there are more ranks than micro-batches, or where these cannot be shared
  // evenly and have to be.
  const bool too_many = useful_ranks_ > 0 && useful_ranks_ < round_.members().size();
  if ((too_many || !elastic_->allows(replicas())) &&
      (!resize_ || resize_->replicas * config_.ranks_per_replica > useful_ranks_ ||
       !elastic_->allows(resize_->replicas))) {
    const uint32_t below = elastic_->largest_allowed(std::min(replicas(), useful_ranks_ / config_.ranks_per_replica));
    resize_ = Resize{
        below > 0 ? below : elastic_->smallest_allowed(1), true,
        too_many ? "the batches feed no more than " + std::to_string(useful_ranks_) + " ranks"
                 : "the batches cannot be shared evenly by " + std::to_string(round_.members().size()) + " ranks"};
    journal("resize_planned", resize_->because, {{"from", int64_t{replicas()}}, {"to", int64_t{resize_->replicas}}});
  }
  if (phase_ == Phase::kRunning) {
    seal(resize_ ? resize_->because : "a change of size that is not wanted any more");
  }
}

// ---- a plain script ----------------------------------------------------------------------------------------------

// No member has a recoverable function, and none is gone. Nothing can be done for such a script but to tell it: it
// saves what it needs, and ends (keepstep.elastic_event_detected).
bool Membership::is_plain() const {
  return elastic_ && (phase_ == Phase::kForming || phase_ == Phase::kRunning) && !round_.members().empty() &&
         std::all_of(round_.members().begin(), round_.members().end(), [this](const Member& member) {
           const Worker& worker = roster_.at(member.worker);
           return worker.status == Status::kMember && !worker.recoverable;
         });
}

// All members have exited with 0. Who was told that the world changes, and said that it heard, wants to go on in the
// new one; else the job is over.
bool Membership::begins_again() {
  if (!elastic_ || !resize_ || round_.paused() != round_.members().size()) {
    return false;
  }
  const Resize wanted = *resize_;
  const uint32_t before = replicas();
  clear_for_restart(wanted.because);
  resize();
  elastic_->on_changed(before, replicas(), wanted.forced, now_);
  formed_replicas_ = replicas();
  resized_.reset();
  gather();
  return true;
}

// ---- another world ------------------------------------------------------------------------------------------------

// The verdict is out. What was wanted may not be there any more: then as much of it as can be had.
void Membership::resize() {
  if (!resize_) {
    return;
  }
  Resize wanted = *std::exchange(resize_, std::nullopt);
  const std::vector<Unit> all = units();
  const uint32_t possible = most_replicas(all);
  uint32_t size = elastic_->largest_allowed(std::min(wanted.replicas, possible));
  if (size < wanted.replicas && size <= replicas()) {
    // Not more than before, where that was decided: whether, and why, to go on with less is another decision.
    journal("resize_dropped", "fewer are left than it was decided for: " + wanted.because,
            {{"possible", int64_t{possible}}});
    ask_policy(elastic_view(all));
    if (!resize_) {
      return;
    }
    wanted = *std::exchange(resize_, std::nullopt);
    size = elastic_->largest_allowed(std::min(wanted.replicas, possible));
    if (size == 0) {
      return;
    }
  }
  std::vector<Unit> chosen = choose(all, size);
  const char* why = why_not_now(chosen);
  if (why != nullptr && holdings_.sharded() && !placement_.homeless().empty()) {
    if (std::optional<std::vector<Unit>> others = choose_for_shards(all, size)) {
      why = nullptr;
      chosen = *std::move(others);
      size = replicas_of(chosen.size());
    }
  }
  if (why != nullptr) {
    const bool anybody =
        version_ == 0 || (!holdings_.sharded() &&
                          std::any_of(round_.members().begin(), round_.members().end(), [this](const Member& member) {
                            return alive(member) && holds_state(member.rank);
                          }));
    if (!placement_.homeless().empty() && !anybody) {
      const std::string what = "only ranks of lost nodes had the state of step " + std::to_string(version_);
      take_rung(Fault{FaultKind::kNoSource, 0, current_step(), 1, what, ""});
      return;
    }
    journal("resize_postponed", why, {{"to", int64_t{size}}});
    postponed_at_ = now_;
    lacks_shards_ = true;
    return;
  }
  lacks_shards_ = false;
  const uint32_t before = replicas();
  std::vector<int64_t> left;
  std::set<std::pair<NodeId, uint32_t>> stay;
  for (const Unit& unit : chosen) {
    stay.emplace(unit.node, unit.group);
  }
  std::vector<WorkerId> leavers;
  for (Rank rank = 0; rank < placement_.world(); ++rank) {
    const Slot& slot = placement_.at(rank);
    if (!stay.contains({slot.node, slot.local_rank / unit_ranks()})) {
      left.push_back(rank);
      if (slot.holder != kNoWorker) {
        leavers.push_back(slot.holder);
      }
    }
  }
  settle(chosen);
  for (const WorkerId id : leavers) {
    roster_.leave_rank(id);
  }
  because_ = wanted.because;
  resized_ = wanted;
  resized_->replicas = size;
  journal("resized", wanted.because,
          {{"from", int64_t{before}},
           {"to", int64_t{size}},
           {"ranks", int64_t{placement_.world()}},
           {"left", left},
           {"joined", std::vector<int64_t>(placement_.empty().begin(), placement_.empty().end())}});
}

uint32_t Membership::most_replicas(const std::vector<Unit>& all) const {
  return replicas_of(
      static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const Unit& unit) { return unit.usable(); })));
}

std::vector<Placement::Unit> Membership::choose(const std::vector<Unit>& all, uint32_t replicas) const {
  return placement_.choose(all, replicas * config_.ranks_per_replica / unit_ranks());
}

std::vector<Placement::Slot> Membership::slots_for(const std::vector<Unit>& chosen) const {
  return placement_.slots_for(chosen, unit_ranks());
}

// What only the leavers have would be lost with them: the state, or a rank's own values of which another process has
// the copy, one that died at the same time or has none yet. Without homeless ranks such a moment passes.
const char* Membership::why_not_now(const std::vector<Unit>& chosen) const {
  if (placement_.first_node() != chosen.front().node) {
    return "the node of rank 0 has to stay";
  }
  if (round_.members().empty()) {
    return nullptr;  // a restart: everything is loaded, or built
  }
  if (holdings_.sharded()) {
    return why_no_shards(chosen);
  }
  std::set<std::pair<NodeId, uint32_t>> stay;
  for (const Unit& unit : chosen) {
    stay.emplace(unit.node, unit.group);
  }
  // By process: where the world was to change before in this gathering, ranks and slots do not go together any more.
  std::map<WorkerId, Rank> sealed;
  for (const Member& member : round_.members()) {
    sealed.emplace(member.worker, member.rank);
  }
  bool hold_state = version_ == 0;
  bool have_all = true;
  for (const Slot& slot : placement_.slots()) {
    if (stay.contains({slot.node, slot.local_rank / unit_ranks()})) {
      const auto member = sealed.find(slot.holder);
      hold_state |= member != sealed.end() && holds_state(member->second);
      have_all &= member != sealed.end() && slot.formed_holder == slot.holder;
    }
  }
  if (!hold_state) {
    return "only ranks that would leave have the state right now";
  }
  return have_all || !placement_.homeless().empty() ? nullptr : "a rank that stays is being replaced right now";
}

// Where nothing goes on without it: more than `replicas`, or with nodes that are to leave, if those that would stay do
// not have all shards. Leavers give theirs away before the next change then.
std::optional<std::vector<Placement::Unit>> Membership::choose_for_shards(std::vector<Unit> all,
                                                                          uint32_t replicas) const {
  for (const bool with_leavers : {false, true}) {
    for (Unit& unit : all) {
      unit.leaving = unit.leaving && !(with_leavers && unit.member);
    }
    const uint32_t possible = most_replicas(all);
    for (uint32_t size = replicas; size > 0 && size <= possible; size = elastic_->smallest_allowed(size + 1)) {
      if (std::vector<Unit> chosen = choose(all, size); why_not_now(chosen) == nullptr) {
        return chosen;
      }
    }
  }
  return std::nullopt;
}

// The same where each rank has a part of the state: all parts have to be on nodes that stay.
const char* Membership::why_no_shards(const std::vector<Unit>& chosen) const {
  std::set<NodeId> nodes;
  for (const Unit& unit : chosen) {
    nodes.insert(unit.node);
  }
  const bool resharded = holdings_.resharded() || placement_.reshards(slots_for(chosen));
  const std::optional<Holdings::Kept> found = kept(decided_->verdict, resharded, &nodes, nullptr);
  Version needed = version_;
  if (!placement_.homeless().empty()) {
    // Waiting does not help: what only processes had of a step is lost when the state is resharded.
    std::set<NodeId> there;
    for (const Unit& unit : units()) {
      if (unit.member || unit.ready) {
        there.insert(unit.node);
      }
    }
    const std::optional<Holdings::Kept> best = kept(decided_->verdict, resharded, &there, nullptr);
    needed = best ? best->verdict.version : version_;
  }
  return found && found->verdict.version >= needed
             ? nullptr
             : "the nodes that would stay do not have the shards of all ranks right now";
}

// Where members with sharded state give it to before the change that is planned.
std::vector<NodeId> Membership::who_would_stay() const {
  if (!holdings_.sharded() || !resize_) {
    return {};
  }
  const std::vector<Unit> all = units();
  const uint32_t possible = most_replicas(all);
  std::set<NodeId> nodes;
  for (const Unit& unit : choose(all, elastic_->largest_allowed(std::min(resize_->replicas, possible)))) {
    if (placement_.has_ranks(unit.node)) {
      nodes.insert(unit.node);
    }
  }
  return {nodes.begin(), nodes.end()};
}

// The slots of the next generation.
void Membership::settle(const std::vector<Unit>& chosen) {
  std::vector<Slot> slots = slots_for(chosen);
  if (placement_.reshards(slots)) {
    holdings_.reshard();
  }
  placement_.settle(std::move(slots), [this](Rank rank, WorkerId holder) {
    Worker& worker = roster_.at(holder);
    worker.rank = rank;
    return worker.status != Status::kStarting;
  });
}

// A rank that the job had grown to failed before its generation formed: whatever it is, those that trained before go on
// without the newcomers. If that happens again and again on a node without other ranks, it gets none any more. True: so
// it was.
bool Membership::gives_up_growth(Rank rank, const std::string& what) {
  if (!elastic_ || !resized_ || round_.formed() || (phase_ != Phase::kForming && phase_ != Phase::kRunning) ||
      rank >= round_.members().size() || formed_replicas_ == 0 || formed_replicas_ >= replicas() ||
      placement_.at(rank).formed_holder != kNoWorker || !elastic_->allows(formed_replicas_)) {
    return false;
  }
  const NodeId node = round_.members()[rank].node;
  const bool others = std::any_of(placement_.slots().begin(), placement_.slots().end(), [node](const Slot& slot) {
    return slot.node == node && slot.formed_holder != kNoWorker;
  });
  const bool left_out = !others && ++growth_failures_[node] >= kMostGrowthFailures;
  if (left_out) {
    bad_nodes_.insert(node);
  }
  // Growth that did not last: the policy waits longer before the next one.
  elastic_->on_changed(formed_replicas_, replicas(), false, now_);
  elastic_->on_changed(replicas(), formed_replicas_, true, now_);
  resize_ = Resize{formed_replicas_, true, what + "; the job goes on without those that were to join"};
  journal("growth_given_up", resize_->because, {{"newcomers_node", int64_t{node}}, {"node_is_left_out", left_out}});
  seal(resize_->because);
  return true;
}

// A generation formed, or a node without ranks is to leave.
void Membership::resize_formed() {
  if (!elastic_) {
    return;
  }
  const uint32_t now = replicas();
  if (round_.formed() && phase_ == Phase::kRunning) {
    if (resized_) {
      elastic_->on_changed(formed_replicas_, now, resized_->forced, now_);
    }
    formed_replicas_ = now;
    resized_.reset();
    for (const Slot& slot : placement_.slots()) {
      growth_failures_.erase(slot.node);
    }
  }
  if ((phase_ == Phase::kRunning && round_.formed()) || is_plain()) {
    part_from_leavers();
  }
}

// From those that have no ranks.
void Membership::part_from_leavers() {
  for (auto it = leaving_nodes_.begin(); it != leaving_nodes_.end();) {
    const auto [node, leaving] = *it;
    if (placement_.has_ranks(node)) {
      ++it;
      continue;
    }
    journal("node_left", leaving.because, {{"left_node", int64_t{node}}});
    emit(Part{node, leaving.because});
    lose_workers_of(node);
    nodes_.erase(node);
    it = leaving_nodes_.erase(it);
  }
}

}  // namespace keepstep::brain
