#include "brain/membership/sizing.h"

#include <algorithm>
#include <utility>

#include "brain/membership/staffing.h"

namespace keepstep::brain {
namespace {

// At most one `size_kept` line in this time: with flapping capacity the reason changes constantly.
constexpr Time kSizeNewsEvery = std::chrono::seconds(1);
constexpr Time kPostponedFor = std::chrono::milliseconds(100);

}  // namespace

// ---- the start ----------------------------------------------------------------------------------------------------

// A replica of several nodes consists of any whole nodes: the state is the same everywhere.
uint32_t Sizing::unit_ranks() const { return std::min(job_.config.ranks_per_replica, job_.config.ranks_per_node); }

uint32_t Sizing::replicas_of(size_t units) const {
  return static_cast<uint32_t>(units * unit_ranks() / job_.config.ranks_per_replica);
}

void Sizing::note_nodes() {
  enough_since_ =
      job_.nodes.size() < job_.config.nodes ? std::nullopt : std::optional(enough_since_.value_or(job_.now));
}

bool Sizing::enough_nodes() const {
  const size_t units = job_.nodes.size() * (job_.config.ranks_per_node / unit_ranks());
  return job_.nodes.contains(0) && enough_since_ && policy_.largest_allowed(replicas_of(units)) > 0 &&
         (job_.nodes.size() >= job_.config.max_nodes || job_.now - *enough_since_ >= job_.config.start_grace);
}

void Sizing::start() {
  const uint32_t groups = job_.config.ranks_per_node / unit_ranks();
  const uint32_t size = policy_.largest_allowed(replicas_of(job_.nodes.size() * groups));
  std::vector<Unit> chosen;
  for (const auto& [node, endpoint] : job_.nodes) {
    for (uint32_t group = 0; group < groups && replicas_of(chosen.size()) < size; ++group) {
      chosen.push_back({.node = node, .group = group});
    }
  }
  settle(chosen);
  job_.journal("elastic_start", "so many replicas can run on the nodes that came",
               {{"replicas", int64_t{size}},
                {"ranks", int64_t{job_.placement.world()}},
                {"nodes", static_cast<int64_t>(job_.nodes.size())}});
  for (Rank rank = 0; rank < job_.placement.world(); ++rank) {
    job_.take(job_.spawn(job_.placement.at(rank).node, false, job_.because), rank, Placement::Origin::kStart);
  }
  for (const auto& [node, endpoint] : job_.nodes) {
    start_spares(job_, node, job_.because);
  }
}

// ---- what there is ------------------------------------------------------------------------------------------------

// Those of all nodes that are present, by node and group. After a restart nobody is a member: the ranks of all members
// get new processes.
std::vector<Placement::Unit> Sizing::units() const {
  const uint32_t size = unit_ranks();
  const std::set<Placement::UnitKey> unassigned = job_.placement.unassigned_units(size);  // its node may still exist
  const std::map<Placement::UnitKey, Placement::UnitCount> counts = job_.placement.unit_counts(size);
  std::vector<Unit> all;
  for (const auto& [node, endpoint] : job_.nodes) {
    uint32_t parked = job_.roster.parked_on(node);
    const size_t first = all.size();
    for (uint32_t group = 0; group < job_.config.ranks_per_node / size; ++group) {
      const auto found = counts.find({node, group});
      const bool member = found != counts.end();
      const Placement::UnitCount count = member ? found->second : Placement::UnitCount{};
      if (unassigned.contains({node, group}) || (!member && job_.waits_unused(node))) {
        continue;
      }
      all.push_back({.node = node,
                     .group = group,
                     .member = member,
                     .whole = member && count.living == size,
                     .formed = member && count.formed == size,
                     .leaving = job_.leaving_nodes.contains(node)});
      // Parked workers go to the dead ranks first.
      parked -= member && !job_.round.members().empty() ? std::min(parked, size - count.living) : 0;
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

ElasticView Sizing::view_of(const std::vector<Unit>& all) const {
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
                   .useful = useful_ranks_ / job_.config.ranks_per_replica};
  view.coming = replicas_of(stay + ready + coming) - view.ready;
  for (const auto& [node, leave] : job_.leaving_nodes) {
    if (job_.placement.has_ranks(node)) {
      view.leave_by = std::min(view.leave_by.value_or(leave.by), leave.by);
    }
  }
  return view;
}

// ---- what is wanted -----------------------------------------------------------------------------------------------

bool Sizing::scale(const ScaleRequested& event) {
  const std::string mistake = policy_.scale_to(event.replicas);
  if (!mistake.empty()) {
    job_.journal("refused", mistake);
    return false;
  }
  job_.journal("scale_requested", event.replicas ? "by a user" : "by a user: the policy decides again",
               {{"replicas", int64_t{event.replicas.value_or(0)}}});
  return true;
}

bool Sizing::configure(const PolicyChanged& event) {
  const std::vector<std::string> mistakes = policy_.configure(event.config);
  for (const std::string& mistake : mistakes) {
    job_.journal("refused", mistake);
  }
  if (!mistakes.empty()) {
    return false;
  }
  job_.config.elastic = event.config;
  job_.journal(
      "policy_changed", "by a user",
      {{"min_replicas", int64_t{event.config.min_replicas}}, {"max_replicas", int64_t{event.config.max_replicas}}});
  return true;
}

std::optional<std::string> Sizing::limit(const UsefulWorlds& event) {
  if (useful_ranks_ == event.ranks && even_sizes_ == event.sizes) {
    return std::nullopt;
  }
  useful_ranks_ = event.ranks;
  even_sizes_ = event.sizes;
  job_.journal(
      "useful_worlds",
      event.sizes.empty() ? "a step has so many micro-batches, and each rank needs one"
                          : "each rank needs as many of a step's micro-batches as the others",
      {{"ranks", int64_t{event.ranks}}, {"sizes", std::vector<int64_t>(event.sizes.begin(), event.sizes.end())}});
  policy_.only({});
  const uint32_t least = policy_.smallest_allowed(1) * job_.config.ranks_per_replica;
  std::vector<uint32_t> even;
  for (const uint32_t ranks : event.sizes) {
    if (ranks % job_.config.ranks_per_replica == 0) {
      even.push_back(ranks / job_.config.ranks_per_replica);
    }
  }
  policy_.only(even);
  if (!event.sizes.empty() && (even.empty() || policy_.smallest_allowed(1) == 0)) {
    return "each rank needs as many of a step's micro-batches as the others, and none of the sizes that the job may "
           "have shares them evenly: use another micro_batch or global_batch, or allow other sizes (--min-replicas, "
           "--replica-discrete-values)";
  }
  if (max_fed() == 0) {
    return "the batches feed no more than " + std::to_string(event.ranks) +
           " ranks, each of which needs a micro-batch, and the job may not have fewer than " + std::to_string(least) +
           ": use a smaller micro_batch or a larger global_batch, or allow fewer replicas (--min-replicas)";
  }
  return std::nullopt;
}

// In replicas: the largest allowed size that can be fed; 0: none.
uint32_t Sizing::max_fed() const { return policy_.largest_allowed(useful_ranks_ / job_.config.ranks_per_replica); }

bool Sizing::leave(const NodeLeaves& event) {
  if (!job_.nodes.contains(event.node)) {
    return false;
  }
  const bool waiting = job_.phase == Phase::kWaiting;
  if (waiting ? event.node == 0 : job_.placement.first_node() == event.node) {
    job_.journal("refused", "node " + std::to_string(event.node) +
                                " has rank 0 and the coordinator, and cannot leave: " + event.because);
    return false;
  }
  const Time within = job_.config.elastic->graceful_shutdown_timeout;
  if (!job_.leaving_nodes.emplace(event.node, Job::Leaving{event.because, job_.now + within}).second) {
    return false;
  }
  job_.journal("node_leaves", event.because,
               {{"leaving_node", int64_t{event.node}}, {"within_s", std::chrono::duration<double>(within).count()}});
  part_from_leavers();
  if (waiting) {
    note_nodes();
  }
  return !waiting && job_.placement.has_ranks(event.node);
}

Sizing::Next Sizing::next() {
  using What = Next::What;
  const bool plain = job_.is_plain();
  const bool waits = job_.phase == Phase::kGathering && !job_.placement.unassigned().empty();
  const bool runs = job_.phase == Phase::kRunning && job_.round.stepped() && !job_.round.ending().released() &&
                    !job_.round.ending().anybody_through();
  if (!plain && ((!waits && !runs) || (postponed_at_ && job_.now - *postponed_at_ < kPostponedFor))) {
    return {};
  }
  if (!view_) {
    view_ = {view_of(units()), job_.survivors_recoverable(false)};
  }
  // After a restart nobody is left to be interrupted.
  const bool nobody = waits && !job_.anybody_alive();
  if (!plain && !nobody && !view_->recoverable) {
    return {};
  }
  postponed_at_.reset();
  const ElasticView view = view_->elastic;
  ask_policy(view);
  if (waits) {
    return {What::kResize};
  }
  if (!wanted_) {
    return {};
  }
  // Nodes that must leave do not wait too long for the end of a long step.
  const Time margin = job_.config.elastic->graceful_shutdown_timeout / 5;
  // If only leavers have some shards, so that this was not possible, they hand them over at the end of a step.
  if (!plain && view.leave_by && job_.now + margin >= *view.leave_by && !(job_.holdings.sharded() && was_postponed_)) {
    return {What::kSeal, "the step is interrupted because the leaving ranks are out of time: " + wanted_->because};
  }
  if (!std::exchange(pausing_, true)) {
    stay_ = who_would_stay();
    return {What::kPause};
  }
  if (!plain && job_.round.paused() > 0 && job_.now - paused_at_ >= job_.config.start_timeout) {
    return {What::kSeal,
            "some ranks do not reach the end of their step, and a resize waits for them: " + wanted_->because};
  }
  return {};
}

void Sizing::ask_policy(const ElasticView& view) {
  const ElasticDecision decision = policy_.step(view, job_.now);
  if (decision.kind == ElasticDecision::Kind::kStay) {
    if (stays_because_ != decision.because && job_.now - stays_said_at_ >= kSizeNewsEvery) {
      stays_because_ = decision.because;
      if (!stays_because_.empty()) {
        stays_said_at_ = job_.now;
        job_.journal("size_kept", decision.because, decision.considered);
      }
    }
    if (wanted_ && !job_.is_plain()) {  // a plain script may have saved already
      job_.journal("resize_dropped", "it is not wanted any more: " + wanted_->because);
      wanted_.reset();
    }
  } else if (!wanted_ || wanted_->replicas != decision.replicas) {
    wanted_ = Resize{decision.replicas, decision.forced, decision.because};
    std::vector<Field> fields = {{"from", int64_t{view.replicas}}, {"to", int64_t{decision.replicas}}};
    fields.insert(fields.end(), decision.considered.begin(), decision.considered.end());
    job_.journal("resize_planned", decision.because, std::move(fields));
  }
}

// ---- members that pause -------------------------------------------------------------------------------------------

Pause Sizing::pause() const { return {job_.round.identity(), wanted_ ? wanted_->because : job_.because, stay_}; }

std::string Sizing::all_paused() {
  // They pause before their first step if there are more ranks than micro-batches, or if these must be shared evenly
  // and cannot be.
  const size_t ranks = job_.round.members().size();
  const uint32_t fed = useful_ranks_ / job_.config.ranks_per_replica;
  const bool too_many = useful_ranks_ > 0 && useful_ranks_ < ranks;
  if ((too_many || !policy_.allows(replicas())) &&
      (!wanted_ || wanted_->replicas * job_.config.ranks_per_replica > useful_ranks_ ||
       !policy_.allows(wanted_->replicas))) {
    const uint32_t below = policy_.largest_allowed(std::min(replicas(), fed));
    wanted_ = Resize{below > 0 ? below : policy_.smallest_allowed(1), true,
                     too_many ? "the batches feed no more than " + std::to_string(useful_ranks_) + " ranks"
                              : "the batches cannot be shared evenly by " + std::to_string(ranks) + " ranks"};
    job_.journal("resize_planned", wanted_->because,
                 {{"from", int64_t{replicas()}}, {"to", int64_t{wanted_->replicas}}});
  }
  return wanted_ ? wanted_->because : "a change of size that is not wanted any more";
}

// ---- a change that was carried out --------------------------------------------------------------------------------

std::optional<Sizing::Resize> Sizing::begins_again() const {
  return job_.round.paused() == job_.round.members().size() ? wanted_ : std::nullopt;
}

void Sizing::began_again(uint32_t replicas_before, const Resize& wanted) {
  policy_.on_changed(replicas_before, replicas(), wanted.forced, job_.now);
  formed_replicas_ = replicas();
  unformed_.reset();
}

void Sizing::formed() {
  if (job_.phase != Phase::kRunning) {
    return;  // it is sealed already
  }
  if (unformed_) {
    policy_.on_changed(formed_replicas_, replicas(), unformed_->forced, job_.now);
  }
  formed_replicas_ = replicas();
  unformed_.reset();
  for (const Slot& slot : job_.placement.slots()) {
    growth_failures_.erase(slot.node);
  }
  part_from_leavers();
}

void Sizing::part_from_leavers() {
  const bool runs = job_.phase == Phase::kRunning && job_.round.formed();
  if (job_.phase != Phase::kWaiting && !runs && !job_.is_plain()) {
    return;
  }
  for (auto it = job_.leaving_nodes.begin(); it != job_.leaving_nodes.end();) {
    const auto [node, leaving] = *it;
    if (job_.placement.has_ranks(node)) {
      ++it;
      continue;
    }
    job_.journal("node_left", leaving.because, {{"left_node", int64_t{node}}});
    job_.emit(ReleaseNode{node, leaving.because});
    job_.lose_workers_of(node);
    job_.nodes.erase(node);
    it = job_.leaving_nodes.erase(it);
  }
}

}  // namespace keepstep::brain
