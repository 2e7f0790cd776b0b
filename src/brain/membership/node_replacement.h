// Nodes that are lost, or work badly (rung 2 of the ladder): which goes, and which takes its ranks. Pure.
#pragma once

#include "brain/commit/digests.h"
#include "brain/membership/job.h"

namespace keepstep::brain {

class NodeReplacement {
 public:
  NodeReplacement(Job& job, RecoveryLadder& ladder) : job_(job), ladder_(ladder) {}

  NodePlace place_of(NodeId node) const;

  // ---- broken connections ----
  void link_reported(NodeId by) { ++link_reports_[by]; }
  void forget_reports() { link_reports_.clear(); }
  // Of the nodes that told of broken connections the one that did so most often (it reaches the fewest others), else
  // the one with the higher number. The node of rank 0 has to stay; where only that one told, the other end is known if
  // there are just two nodes with ranks.
  NodeId end_to_blame(NodeId reporter) const;

  // ---- who goes ----
  // After the verdict: vacate().
  void give_up(NodeId node);
  // Lies count against a node as deaths do.
  void count_lies(const std::vector<RankDigest>& odd, const std::string& because);
  // As for a lost node, but what it knew of the last step is in the verdict already, and its agent stays, without
  // ranks.
  void vacate();
  // The ranks of a node are without a place, because of `what`.
  void lose(NodeId node, const std::string& what);
  void cancel_vacating() { leaving_.reset(); }
  void cancel_vacating(NodeId node);  // it is lost, and has nothing that could be vacated

  // ---- who takes the ranks ----
  // The ranks of each lost node move, together, to a node that has none.
  void reassign_lost_nodes();
  // Ranks have no place. Nothing else happens until then: whoever looks at the job must know what it waits for.
  void tell_of_waiting(NodeId lost);
  // Why the job ends: no node came in time. Nothing: it need not.
  std::optional<std::string> nobody_came() const;

 private:
  Time timeout() const;
  std::optional<NodeId> replacement_for(NodeId lost) const;

  Job& job_;
  RecoveryLadder& ladder_;
  std::optional<NodeId> leaving_;       // its ranks move once the verdict is out
  std::map<NodeId, int> link_reports_;  // that ranks of a node made since the last progress
  std::string loss_;                    // why ranks are unassigned
  Time unassigned_since_{};
};

}  // namespace keepstep::brain
