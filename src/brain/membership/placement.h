// Which rank belongs to which place on which node, and which worker holds it or is to hold it. Pure.
//
// A slot is a rank's place. It stays the same from one generation to the next unless its node is lost or given up
// (move) or the world changes (settle); its holders may change.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brain/membership/membership_messages.h"

namespace keepstep::brain {

class Placement {
 public:
  enum class Origin { kStart, kSpare, kZygote, kSurvivor, kRestart };  // how a rank got its worker
  struct Slot {
    NodeId node = 0;
    uint16_t local_rank = 0;
    WorkerId holder = kNoWorker;         // of the next generation while gathering, otherwise of this one
    WorkerId formed_holder = kNoWorker;  // in the last generation that formed
    Origin origin = Origin::kStart;
    bool left = false;  // its worker exited with 0 before it asked for a rank
  };
  // Places `group` * size to (`group` + 1) * size - 1 of a node, which are added and removed together.
  struct Unit {
    NodeId node = 0;
    uint32_t group = 0;
    bool member = false;   // its ranks are in the running generation
    bool whole = false;    // ... and all of them are alive
    bool formed = false;   // ... and were in the last generation that formed
    bool ready = false;    // not a member; workers for all its ranks are parked
    bool leaving = false;  // its node was told to leave
    bool usable() const { return !leaving && (member || ready); }
  };

  // ---- ranks and places ----
  const std::vector<Slot>& slots() const { return slots_; }  // by rank
  const Slot& at(Rank rank) const { return slots_[rank]; }
  Rank world() const { return static_cast<Rank>(slots_.size()); }
  NodeId first_node() const { return slots_.front().node; }  // of rank 0
  void add(NodeId node, uint32_t local_rank);                // appends the next rank
  uint32_t ranks_on(NodeId node) const;
  bool has_ranks(NodeId node) const { return ranks_on_.contains(node); }  // lost or not
  std::set<NodeId> nodes() const;                                         // those that have ranks
  // Consecutive ranks on a node share an entry.
  RankTable table(const std::map<NodeId, NodeEndpoint>& nodes) const;

  // ---- workers ----
  // `parked`: the worker can begin; otherwise it is awaited.
  void give(Rank rank, WorkerId worker, Origin origin, bool parked);
  void parked(Rank rank) { starting_.erase(rank); }
  void take_back(Rank rank, WorkerId worker);             // it is gone; no effect if another one holds the rank
  void leave(Rank rank);                                  // see Slot::left
  const std::set<Rank>& empty() const { return empty_; }  // without a holder
  bool waits_for_workers() const { return !starting_.empty(); }
  void form(const std::vector<Member>& members);
  void forget_formed();
  bool newcomer(Rank rank) const { return slots_[rank].formed_holder != slots_[rank].holder; }
  void survive();  // every rank's holder is from the previous generation

  // ---- ranks whose node is lost or given up ----
  const std::set<Rank>& unassigned() const { return unassigned_; }
  std::vector<Rank> unassigned_of(NodeId node) const;
  void unassign(NodeId node);
  std::vector<int64_t> move(NodeId lost, NodeId taker);  // all ranks of that node together; returns them

  // ---- another world ----
  // By node and group: how many are alive, how many formed.
  struct UnitCount {
    uint32_t living = 0;
    uint32_t formed = 0;
  };
  using UnitKey = std::pair<NodeId, uint32_t>;
  std::map<UnitKey, UnitCount> unit_counts(uint32_t size) const;
  std::set<UnitKey> unassigned_units(uint32_t size) const;
  // The best `most` of `all`: members stay members; formed and living ones come first, then by rank. At least one unit
  // is on the node of rank 0, whose page is never lost while the job lives (step_commit.md).
  std::vector<Unit> choose(const std::vector<Unit>& all, size_t most) const;
  // Slots in the order of `chosen`: existing ones stay as they are, new ones are empty.
  std::vector<Slot> slots_for(const std::vector<Unit>& chosen, uint32_t size) const;
  // Whether sharded state is divided differently in `slots` than now: the number of ranks differs, or a place has
  // another rank.
  bool reshards(const std::vector<Slot>& slots) const;
  // Sets the slots of the next generation. `parked` returns whether a holder is parked.
  template <typename Parked>
  void settle(std::vector<Slot> slots, Parked parked) {
    slots_ = std::move(slots);
    empty_.clear();
    starting_.clear();
    unassigned_.clear();
    ranks_on_.clear();
    for (Rank rank = 0; rank < slots_.size(); ++rank) {
      ++ranks_on_[slots_[rank].node];
      if (slots_[rank].holder == kNoWorker) {
        empty_.insert(rank);
      } else if (!parked(rank, slots_[rank].holder)) {
        starting_.insert(rank);
      }
    }
  }

 private:
  std::vector<Slot> slots_;
  std::map<NodeId, uint32_t> ranks_on_;
  // The cost of an event must not grow with the world: these sets save a walk over all ranks.
  std::set<Rank> empty_;
  std::set<Rank> starting_;  // whose holder has not parked yet
  std::set<Rank> unassigned_;
};

}  // namespace keepstep::brain
