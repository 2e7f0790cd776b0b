// Which rank belongs to which place of which node, and which worker holds it, or is to. Pure.
//
// A slot is a rank's place. It keeps its place from one generation to the next unless its node is lost or given up
// (move) or the world changes (settle); who holds it comes and goes.
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
  enum class Origin { kStart, kSpare, kZygote, kSurvivor, kRestart };  // how a rank came by its worker
  struct Slot {
    NodeId node = 0;
    uint16_t local_rank = 0;
    WorkerId holder = kNoWorker;         // of the next generation while gathering, else of this one
    WorkerId formed_holder = kNoWorker;  // in the last generation that formed
    Origin origin = Origin::kStart;
    bool left = false;  // its worker exited with 0 before it asked for a rank
  };
  // Places `group` * size to (`group` + 1) * size - 1 of a node, which come and go together.
  struct Unit {
    NodeId node = 0;
    uint32_t group = 0;
    bool member = false;   // its ranks are in the running generation
    bool whole = false;    // and all of them live
    bool formed = false;   // and were in the generation that formed last
    bool ready = false;    // not a member; workers for all its ranks are parked
    bool leaving = false;  // its node was told to leave
    bool usable() const { return !leaving && (member || ready); }
  };

  // ---- ranks and places ----
  const std::vector<Slot>& slots() const { return slots_; }  // by rank
  const Slot& at(Rank rank) const { return slots_[rank]; }
  Rank world() const { return static_cast<Rank>(slots_.size()); }
  NodeId first_node() const { return slots_.front().node; }  // of rank 0
  void add(NodeId node, uint32_t local_rank);                // the next rank's
  uint32_t ranks_on(NodeId node) const;
  bool has_ranks(NodeId node) const { return ranks_on_.contains(node); }  // lost or not
  std::set<NodeId> nodes() const;                                         // that have
  // Ranks that follow one another on their node share an entry.
  RankTable table(const std::map<NodeId, NodeEndpoint>& nodes) const;

  // ---- workers ----
  // `parked`: it can begin; else it is waited for.
  void give(Rank rank, WorkerId worker, Origin origin, bool parked);
  void parked(Rank rank) { starting_.erase(rank); }
  void take_back(Rank rank, WorkerId worker);             // it is gone; nothing happens if another holds the rank
  void leave(Rank rank);                                  // see Slot::left
  const std::set<Rank>& empty() const { return empty_; }  // without a holder
  bool waits_for_workers() const { return !starting_.empty(); }
  void form(const std::vector<Member>& members);
  void forget_formed();
  bool newcomer(Rank rank) const { return slots_[rank].formed_holder != slots_[rank].holder; }
  void survive();  // whoever holds a rank now has it from the generation before

  // ---- ranks whose node is lost, or given up ----
  const std::set<Rank>& unassigned() const { return unassigned_; }
  std::vector<Rank> unassigned_of(NodeId node) const;
  void unassign(NodeId node);
  std::vector<int64_t> move(NodeId lost, NodeId taker);  // all of that node, together; returns which

  // ---- another world ----
  // By node and group: who lives, who formed.
  struct UnitCount {
    uint32_t living = 0;
    uint32_t formed = 0;
  };
  using UnitKey = std::pair<NodeId, uint32_t>;
  std::map<UnitKey, UnitCount> unit_counts(uint32_t size) const;
  std::set<UnitKey> unassigned_units(uint32_t size) const;
  // The best of `all`, so many of them: who is a member stays one, first those that live, then by rank. At least one is
  // of the node of rank 0, whose page is never lost while the job lives (step_commit.md).
  std::vector<Unit> choose(const std::vector<Unit>& all, size_t most) const;
  // What stays as it is, in the order of `chosen`, the others empty.
  std::vector<Slot> slots_for(const std::vector<Unit>& chosen, uint32_t size) const;
  // Whether sharded state is divided otherwise in `slots` than it is now: among another number of ranks, or a place has
  // another rank.
  bool reshards(const std::vector<Slot>& slots) const;
  // The slots of the next generation. `parked` says of a holder whether it is.
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
  // What an event costs must not grow with the world: these say what else a walk over all ranks would.
  std::set<Rank> empty_;
  std::set<Rank> starting_;  // whose holder has not parked yet
  std::set<Rank> unassigned_;
};

}  // namespace keepstep::brain
