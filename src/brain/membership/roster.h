// The workers of a job: which ones exist, on which node, what each waits for or is to be ended for, and until when.
// Pure.
//
// Worker numbers are never reused, so late news of a forgotten worker names no one and is ignored.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

class Roster {
 public:
  enum class Status { kStarting, kParked, kMember, kGone };
  struct Worker {
    NodeId node = 0;
    int64_t pid = 0;
    Status status = Status::kStarting;
    bool recoverable = false;
    Time recoverable_since{};
    bool taken = false;  // a rank counts on it, or it is or was a member
    bool left = false;   // it was a member until the world shrank, and waits as a spare that has the state
    Rank rank = 0;       // if taken
    Time spawned_at{};
    std::optional<Time> killed_at;  // the last Kill that was sent
    std::optional<Time> due;        // see look_again
  };

  size_t size() const { return workers_.size(); }
  const std::map<WorkerId, Worker>& all() const { return workers_; }  // without forgotten ones
  Worker* find(WorkerId id);
  const Worker* find(WorkerId id) const { return const_cast<Roster*>(this)->find(id); }
  Worker& at(WorkerId id) { return workers_.at(id); }
  const Worker& at(WorkerId id) const { return workers_.at(id); }

  WorkerId add(NodeId node, Time now);  // a spare, until it is taken
  void take(WorkerId id, Rank rank);
  // A member that no longer has a rank: its process stays, as a spare that already has the state.
  void leave_rank(WorkerId id);
  void retire(WorkerId id);  // it is gone, or is treated as gone
  // Its node is lost or released: no more news will come from it. Returns the workers that were alive, by id.
  std::vector<WorkerId> lose(NodeId node);
  // Forgets workers that are gone, except those that are `needed` or still ending. Returns the forgotten ones.
  std::vector<WorkerId> forget_the_gone(const std::function<bool(WorkerId, const Worker&)>& needed);

  // ---- spares: living or starting workers that no rank counts on ----
  size_t spares_on(NodeId node) const;
  uint32_t parked_on(NodeId node) const;
  WorkerId free(NodeId node, Status status) const;  // kNoWorker if there is none
  // How many of a node's workers without a rank were lost in a row with no progress in between.
  struct LostStarts {
    int in_a_row = 0;
    bool told = false;
  };
  LostStarts& lost_starts(NodeId node) { return lost_starts_[node]; }
  void forget_lost_starts() { lost_starts_.clear(); }

  // ---- exits that are requested repeatedly ----
  void await_exit(WorkerId id) { unconfirmed_.insert(id); }  // nothing is prepared before the exit is known
  void ask_for_exit(WorkerId id) { ending_.insert(id); }     // nothing waits for the exit
  bool awaits_exits() const { return !unconfirmed_.empty(); }
  bool is_ending(WorkerId id) const { return unconfirmed_.contains(id) || ending_.contains(id); }
  bool confirm_exit(WorkerId id);  // true if the exit was awaited

  // ---- deadlines ----
  // At `at` or earlier: a worker has at most one such time, the earliest.
  void look_again(WorkerId id, Time at);
  // A worker whose time has come by `now`; kNoWorker if none. It then has no time until the next look_again().
  WorkerId next_due(Time now);

 private:
  std::map<WorkerId, Worker> workers_;
  WorkerId next_ = 0;
  std::map<NodeId, std::set<WorkerId>> spares_;
  std::map<NodeId, LostStarts> lost_starts_;
  std::set<WorkerId> unconfirmed_;
  std::set<WorkerId> ending_;
  std::set<std::pair<Time, WorkerId>> due_;
};

}  // namespace keepstep::brain
