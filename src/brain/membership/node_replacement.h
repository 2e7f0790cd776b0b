// Nodes that are lost or faulty (rung 2 of the ladder): which one goes, and which one takes its ranks. Pure.
#pragma once

#include "brain/commit/digests.h"
#include "brain/membership/job.h"

namespace keepstep::brain {

class NodeReplacement {
 public:
  NodeReplacement(Job& job, RecoveryLadder& ladder) : job_(job), ladder_(ladder) {}

  Replaceability replaceability_of(NodeId node) const;

  // ---- broken connections ----
  void link_reported(NodeId by) { ++link_reports_[by]; }
  void forget_reports() { link_reports_.clear(); }
  // Of the nodes that reported broken connections, the one with the most reports (it reaches the fewest others); in a
  // tie, the one with the higher id. The node of rank 0 must stay. If only that node reported, the other end is known
  // only if exactly two nodes have ranks.
  NodeId end_to_blame(NodeId reporter) const;

  // ---- who goes ----
  // Takes effect after the verdict, in vacate().
  void give_up(NodeId node);
  // Corruption counts against a node, as deaths do.
  void count_lies(const std::vector<RankDigest>& odd, const std::string& because);
  // As for a lost node, except that the verdict already includes what the node knew of the last step, and its agent
  // stays, without ranks.
  void vacate();
  // The ranks of a node have no place, because of `what`.
  void lose(NodeId node, const std::string& what);
  void cancel_vacating() { leaving_.reset(); }
  void cancel_vacating(NodeId node);  // it is lost and has nothing left to vacate

  // ---- which node takes the ranks ----
  // The ranks of each lost node move together to a node that has none.
  void reassign_lost_nodes();
  // Reports that ranks have no place. Nothing else happens until they do: anyone who looks at the job must see what it
  // waits for.
  void tell_of_waiting(NodeId lost);
  // Why the job ends: no node came in time. std::nullopt: it need not end.
  std::optional<std::string> nobody_came() const;

 private:
  Time timeout() const;
  std::optional<NodeId> replacement_for(NodeId lost) const;

  Job& job_;
  RecoveryLadder& ladder_;
  std::optional<NodeId> leaving_;       // its ranks move once the verdict is out
  std::map<NodeId, int> link_reports_;  // made by ranks of a node since the last progress
  std::string loss_;                    // why ranks are unassigned
  Time unassigned_since_{};
};

}  // namespace keepstep::brain
