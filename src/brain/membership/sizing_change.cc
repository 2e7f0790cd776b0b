#include <algorithm>
#include <utility>

#include "brain/membership/sizing.h"

namespace keepstep::brain {
namespace {

constexpr int kMaxGrowthFailures = 3;  // per node

}  // namespace

std::optional<Fault> Sizing::resize() {
  if (!wanted_) {
    return std::nullopt;
  }
  Resize wanted = *std::exchange(wanted_, std::nullopt);
  const std::vector<Unit> all = units();
  const uint32_t possible = max_replicas(all);
  uint32_t size = policy_.largest_allowed(std::min(wanted.replicas, possible));
  if (size < wanted.replicas && size <= replicas()) {
    // Less than was decided, and no growth: whether and why to continue with less is another decision.
    job_.journal("resize_dropped", "fewer replicas are left than this resize needs: " + wanted.because,
                 {{"possible", int64_t{possible}}});
    ask_policy(view_of(all));
    if (!wanted_) {
      return std::nullopt;
    }
    wanted = *std::exchange(wanted_, std::nullopt);
    size = policy_.largest_allowed(std::min(wanted.replicas, possible));
    if (size == 0) {
      return std::nullopt;
    }
  }
  const bool unassigned = !job_.placement.unassigned().empty();
  std::vector<Unit> chosen = choose(all, size);
  const char* why = why_not_now(chosen);
  if (why != nullptr && job_.holdings.sharded() && unassigned) {
    if (std::optional<std::vector<Unit>> others = choose_for_shards(all, size)) {
      why = nullptr;
      chosen = *std::move(others);
      size = replicas_of(chosen.size());
    }
  }
  if (why == nullptr) {
    carry_out(chosen, {size, wanted.forced, wanted.because});
    return std::nullopt;
  }
  if (unassigned && !anybody_has_state()) {
    const std::string what = "only ranks of lost nodes had the state of step " + std::to_string(job_.version);
    return Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, what, ""};
  }
  job_.journal("resize_postponed", why, {{"to", int64_t{size}}});
  postponed_at_ = job_.now;
  was_postponed_ = true;
  return std::nullopt;
}

bool Sizing::anybody_has_state() const {
  return job_.version == 0 ||
         (!job_.holdings.sharded() &&
          std::any_of(job_.round.members().begin(), job_.round.members().end(),
                      [this](const Member& member) { return job_.alive(member) && job_.holds_state(member.rank); }));
}

void Sizing::carry_out(const std::vector<Unit>& chosen, const Resize& wanted) {
  was_postponed_ = false;
  const uint32_t before = replicas();
  std::set<std::pair<NodeId, uint32_t>> stay;
  for (const Unit& unit : chosen) {
    stay.emplace(unit.node, unit.group);
  }
  std::vector<int64_t> left;
  std::vector<WorkerId> leavers;
  for (Rank rank = 0; rank < job_.placement.world(); ++rank) {
    const Slot& slot = job_.placement.at(rank);
    if (!stay.contains({slot.node, slot.local_rank / unit_ranks()})) {
      left.push_back(rank);
      if (slot.holder != kNoWorker) {
        leavers.push_back(slot.holder);
      }
    }
  }
  settle(chosen);
  for (const WorkerId id : leavers) {
    job_.roster.leave_rank(id);
  }
  job_.because = wanted.because;
  unformed_ = wanted;
  job_.journal("resized", wanted.because,
               {{"from", int64_t{before}},
                {"to", int64_t{wanted.replicas}},
                {"ranks", int64_t{job_.placement.world()}},
                {"left", left},
                {"joined", std::vector<int64_t>(job_.placement.empty().begin(), job_.placement.empty().end())}});
}

uint32_t Sizing::max_replicas(const std::vector<Unit>& all) const {
  return replicas_of(
      static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const Unit& unit) { return unit.usable(); })));
}

std::vector<Placement::Unit> Sizing::choose(const std::vector<Unit>& all, uint32_t replicas) const {
  return job_.placement.choose(all, replicas * job_.config.ranks_per_replica / unit_ranks());
}

// Whatever only the leavers have would be lost with them: the state, or a rank's own values whose other copy was in a
// process that died at the same time or does not have it yet. Without unassigned ranks, such a moment passes.
const char* Sizing::why_not_now(const std::vector<Unit>& chosen) const {
  if (job_.placement.first_node() != chosen.front().node) {
    return "the node of rank 0 has to stay";
  }
  if (job_.round.members().empty()) {
    return nullptr;  // a restart: everything is loaded or built
  }
  if (job_.holdings.sharded()) {
    return why_no_shards(chosen);
  }
  std::set<std::pair<NodeId, uint32_t>> stay;
  for (const Unit& unit : chosen) {
    stay.emplace(unit.node, unit.group);
  }
  // Keyed by process: if this gathering has changed the world already, ranks and slots no longer match.
  std::map<WorkerId, Rank> sealed;
  for (const Member& member : job_.round.members()) {
    sealed.emplace(member.worker, member.rank);
  }
  bool hold_state = job_.version == 0;
  bool have_all = true;
  for (const Slot& slot : job_.placement.slots()) {
    if (stay.contains({slot.node, slot.local_rank / unit_ranks()})) {
      const auto member = sealed.find(slot.holder);
      hold_state |= member != sealed.end() && job_.holds_state(member->second);
      have_all &= member != sealed.end() && slot.formed_holder == slot.holder;
    }
  }
  if (!hold_state) {
    return "only ranks that would leave have the state right now";
  }
  return have_all || !job_.placement.unassigned().empty() ? nullptr : "a rank that stays is being replaced right now";
}

// For a change that cannot wait. If those that would stay do not have all shards, takes more than `replicas`, or keeps
// nodes that are to leave. These leavers give away their shards before the next change.
std::optional<std::vector<Placement::Unit>> Sizing::choose_for_shards(std::vector<Unit> all, uint32_t replicas) const {
  for (const bool with_leavers : {false, true}) {
    for (Unit& unit : all) {
      unit.leaving = unit.leaving && !(with_leavers && unit.member);
    }
    const uint32_t possible = max_replicas(all);
    for (uint32_t size = replicas; size > 0 && size <= possible; size = policy_.smallest_allowed(size + 1)) {
      if (std::vector<Unit> chosen = choose(all, size); why_not_now(chosen) == nullptr) {
        return chosen;
      }
    }
  }
  return std::nullopt;
}

// The same if each rank has a part of the state: all parts must be on nodes that stay.
const char* Sizing::why_no_shards(const std::vector<Unit>& chosen) const {
  std::set<NodeId> nodes;
  for (const Unit& unit : chosen) {
    nodes.insert(unit.node);
  }
  const bool resharded =
      job_.holdings.resharded() || job_.placement.reshards(job_.placement.slots_for(chosen, unit_ranks()));
  const std::optional<Holdings::Kept> found = job_.kept(job_.decided->verdict, resharded, &nodes, nullptr);
  Version needed = job_.version;
  if (!job_.placement.unassigned().empty()) {
    // Waiting does not help: what only processes held of a step is lost when the state is resharded.
    std::set<NodeId> there;
    for (const Unit& unit : units()) {
      if (unit.member || unit.ready) {
        there.insert(unit.node);
      }
    }
    const std::optional<Holdings::Kept> best = job_.kept(job_.decided->verdict, resharded, &there, nullptr);
    needed = best ? best->verdict.version : job_.version;
  }
  return found && found->verdict.version >= needed
             ? nullptr
             : "the nodes that would stay do not have the shards of all ranks right now";
}

// The nodes to which members hand over sharded state before the planned change.
std::vector<NodeId> Sizing::who_would_stay() const {
  if (!job_.holdings.sharded() || !wanted_) {
    return {};
  }
  const std::vector<Unit> all = units();
  const uint32_t possible = max_replicas(all);
  std::set<NodeId> nodes;
  for (const Unit& unit : choose(all, policy_.largest_allowed(std::min(wanted_->replicas, possible)))) {
    if (job_.placement.has_ranks(unit.node)) {
      nodes.insert(unit.node);
    }
  }
  return {nodes.begin(), nodes.end()};
}

// Sets the slots of the next generation.
void Sizing::settle(const std::vector<Unit>& chosen) {
  std::vector<Slot> slots = job_.placement.slots_for(chosen, unit_ranks());
  if (job_.placement.reshards(slots)) {
    job_.holdings.reshard();
  }
  job_.placement.settle(std::move(slots), [this](Rank rank, WorkerId holder) {
    Roster::Worker& worker = job_.roster.at(holder);
    worker.rank = rank;
    return worker.status != Roster::Status::kStarting;
  });
}

std::optional<std::string> Sizing::give_up_growth(Rank rank, const std::string& what) {
  if (!unformed_ || job_.round.formed() || (job_.phase != Phase::kForming && job_.phase != Phase::kRunning) ||
      rank >= job_.round.members().size() || formed_replicas_ == 0 || formed_replicas_ >= replicas() ||
      job_.placement.at(rank).formed_holder != kNoWorker || !policy_.allows(formed_replicas_)) {
    return std::nullopt;
  }
  const NodeId node = job_.round.members()[rank].node;
  const std::vector<Slot>& slots = job_.placement.slots();
  const bool others = std::any_of(slots.begin(), slots.end(), [node](const Slot& slot) {
    return slot.node == node && slot.formed_holder != kNoWorker;
  });
  const bool left_out = !others && ++growth_failures_[node] >= kMaxGrowthFailures;
  if (left_out) {
    job_.bad_nodes.insert(node);
  }
  // This growth did not last: the policy waits longer before the next one.
  policy_.on_changed(formed_replicas_, replicas(), false, job_.now);
  policy_.on_changed(replicas(), formed_replicas_, true, job_.now);
  wanted_ = Resize{formed_replicas_, true, what + "; the job goes on without those that were to join"};
  job_.journal("growth_given_up", wanted_->because,
               {{"newcomers_node", int64_t{node}}, {"node_is_left_out", left_out}});
  return wanted_->because;
}

}  // namespace keepstep::brain
