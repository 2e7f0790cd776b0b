#include "brain/membership/placement.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>

#include "brain/require.h"

namespace keepstep::brain {

void Placement::add(NodeId node, uint32_t local_rank) {
  slots_.push_back({.node = node, .local_rank = static_cast<uint16_t>(local_rank)});
  ++ranks_on_[node];
}

uint32_t Placement::ranks_on(NodeId node) const {
  const auto found = ranks_on_.find(node);
  return found == ranks_on_.end() ? 0 : found->second;
}

std::set<NodeId> Placement::nodes() const {
  std::set<NodeId> nodes;
  for (const auto& [node, ranks] : ranks_on_) {
    nodes.insert(nodes.end(), node);
  }
  return nodes;
}

RankTable Placement::table(const std::map<NodeId, NodeEndpoint>& nodes) const {
  std::vector<RankTable::Entry> entries;
  for (const Slot& slot : slots_) {
    RankTable::Entry* last = entries.empty() ? nullptr : &entries.back();
    if (last != nullptr && last->node == slot.node && last->first_local + last->ranks == slot.local_rank) {
      ++last->ranks;
    } else {
      entries.push_back({slot.node, 1, slot.local_rank, nodes.at(slot.node)});
    }
  }
  std::string why;
  const auto table = RankTable::make(std::move(entries), &why);
  require(table.has_value(), why.c_str());
  return *table;
}

// ---- workers ------------------------------------------------------------------------------------------------------

void Placement::give(Rank rank, WorkerId worker, Origin origin, bool parked) {
  slots_[rank].holder = worker;
  slots_[rank].origin = origin;
  empty_.erase(rank);
  if (!parked) {
    starting_.insert(rank);
  }
}

void Placement::take_back(Rank rank, WorkerId worker) {
  Slot& slot = slots_[rank];
  if (slot.holder == worker) {
    slot.holder = kNoWorker;
    starting_.erase(rank);
    empty_.insert(rank);
  }
}

void Placement::leave(Rank rank) {
  slots_[rank].left = true;
  empty_.erase(rank);
}

void Placement::form(const std::vector<Member>& members) {
  for (const Member& member : members) {
    slots_[member.rank].formed_holder = member.worker;
  }
}

void Placement::forget_formed() {
  for (Slot& slot : slots_) {
    slot.formed_holder = kNoWorker;
  }
}

void Placement::survive() {
  for (Slot& slot : slots_) {
    slot.origin = Origin::kSurvivor;
  }
}

// ---- ranks whose node is lost or given up -------------------------------------------------------------------------

std::vector<Rank> Placement::unassigned_of(NodeId node) const {
  std::vector<Rank> ranks;
  std::copy_if(unassigned_.begin(), unassigned_.end(), std::back_inserter(ranks),
               [this, node](Rank rank) { return slots_[rank].node == node; });
  return ranks;
}

void Placement::unassign(NodeId node) {
  for (Rank rank = 0; rank < slots_.size(); ++rank) {
    if (slots_[rank].node == node) {
      unassigned_.insert(rank);
    }
  }
}

std::vector<int64_t> Placement::move(NodeId lost, NodeId taker) {
  std::vector<int64_t> moved;
  for (const Rank rank : unassigned_of(lost)) {
    slots_[rank].node = taker;
    unassigned_.erase(rank);
    moved.push_back(rank);
  }
  ranks_on_.erase(lost);
  ranks_on_[taker] = static_cast<uint32_t>(moved.size());
  return moved;
}

// ---- another world ------------------------------------------------------------------------------------------------

std::map<Placement::UnitKey, Placement::UnitCount> Placement::unit_counts(uint32_t size) const {
  std::map<UnitKey, UnitCount> counts;
  for (const Slot& slot : slots_) {
    UnitCount& count = counts[{slot.node, slot.local_rank / size}];
    count.living += slot.holder != kNoWorker ? 1 : 0;
    count.formed += slot.formed_holder != kNoWorker ? 1 : 0;
  }
  return counts;
}

std::set<Placement::UnitKey> Placement::unassigned_units(uint32_t size) const {
  std::set<UnitKey> units;
  for (const Rank rank : unassigned_) {
    units.emplace(slots_[rank].node, slots_[rank].local_rank / size);
  }
  return units;
}

std::vector<Placement::Unit> Placement::choose(const std::vector<Unit>& all, size_t most) const {
  const NodeId first = first_node();
  std::vector<Unit> candidates;
  std::copy_if(all.begin(), all.end(), std::back_inserter(candidates), [](const Unit& unit) { return unit.usable(); });
  const auto order = [first](const Unit& unit) { return std::tuple(unit.node != first, unit.node, unit.group); };
  std::sort(candidates.begin(), candidates.end(), [&](const Unit& a, const Unit& b) {
    return std::tuple(!a.member, !a.formed, !a.whole, order(a)) < std::tuple(!b.member, !b.formed, !b.whole, order(b));
  });
  const auto anchor =
      std::find_if(candidates.begin(), candidates.end(), [first](const Unit& unit) { return unit.node == first; });
  if (anchor != candidates.end()) {
    std::rotate(candidates.begin(), anchor, anchor + 1);
  }
  candidates.resize(std::min(candidates.size(), most));
  std::sort(candidates.begin(), candidates.end(), [&](const Unit& a, const Unit& b) { return order(a) < order(b); });
  return candidates;
}

std::vector<Placement::Slot> Placement::slots_for(const std::vector<Unit>& chosen, uint32_t size) const {
  std::map<std::pair<NodeId, uint16_t>, const Slot*> before;
  for (const Slot& slot : slots_) {
    before[{slot.node, slot.local_rank}] = &slot;
  }
  std::vector<Slot> slots;
  for (const Unit& unit : chosen) {
    for (uint32_t i = 0; i < size; ++i) {
      const auto local = static_cast<uint16_t>(unit.group * size + i);
      const auto found = before.find({unit.node, local});
      slots.push_back(found != before.end() ? *found->second : Slot{.node = unit.node, .local_rank = local});
    }
  }
  return slots;
}

bool Placement::reshards(const std::vector<Slot>& slots) const {
  if (slots.size() != slots_.size()) {
    return true;
  }
  std::map<std::pair<NodeId, uint16_t>, Rank> before;
  for (Rank rank = 0; rank < slots_.size(); ++rank) {
    before[{slots_[rank].node, slots_[rank].local_rank}] = rank;
  }
  for (Rank rank = 0; rank < slots.size(); ++rank) {
    const auto found = before.find({slots[rank].node, slots[rank].local_rank});
    if (found != before.end() && found->second != rank) {
      return true;
    }
  }
  return false;
}

}  // namespace keepstep::brain
