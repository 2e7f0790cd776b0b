#include "brain/membership/node_replacement.h"

#include <algorithm>
#include <tuple>

#include "brain/text.h"

namespace keepstep::brain {

Replaceability NodeReplacement::replaceability_of(NodeId node) const {
  if ((job_.config.elastic ? job_.config.max_nodes : job_.config.nodes) + job_.config.spare_nodes == 1) {
    return Replaceability::kOnly;
  }
  if (job_.placement.first_node() == node) {
    return Replaceability::kHasRank0;
  }
  if (!job_.nodes.contains(node)) {
    return Replaceability::kGone;
  }
  const bool spare = std::any_of(job_.nodes.begin(), job_.nodes.end(), [this, node](const auto& each) {
    return !job_.placement.has_ranks(each.first) && !job_.bad_nodes.contains(each.first) &&
           (!job_.config.elastic || job_.roster.parked_on(each.first) >= job_.placement.ranks_on(node));
  });
  return spare ? Replaceability::kReplaceable : Replaceability::kNoSpare;
}

NodeId NodeReplacement::end_to_blame(NodeId reporter) const {
  const NodeId first = job_.placement.first_node();
  std::pair<int, NodeId> most{0, reporter};
  for (const auto& [node, reports] : link_reports_) {
    if (node != first) {
      most = std::max(most, std::pair(reports, node));
    }
  }
  if (const std::set<NodeId> nodes = job_.placement.nodes(); most.second == first && nodes.size() == 2) {
    return *std::find_if(nodes.begin(), nodes.end(), [first](NodeId node) { return node != first; });
  }
  return most.second;
}

void NodeReplacement::give_up(NodeId node) {
  job_.bad_nodes.insert(node);
  leaving_ = node;
}

void NodeReplacement::count_lies(const std::vector<RankDigest>& odd, const std::string& because) {
  for (const RankDigest& each : odd) {
    const NodeId node = job_.round.members()[each.rank].node;
    if (!ladder_.on_digest_mismatch(node, replaceability_of(node), job_.now) || leaving_) {
      continue;
    }
    give_up(node);
    const int faults = ladder_.faults_on(node, job_.now);
    job_.because = because + "; node " + std::to_string(node) + " had " + std::to_string(faults) +
                   (faults == 1 ? " fault" : " faults") + " within " + seconds_text(job_.config.ladder.node_window) +
                   ": its ranks move to a spare node";
    job_.journal("rung", job_.because, {{"rung", std::string(name(Rung::kReplaceNode))}, {"bad_node", int64_t{node}}});
  }
}

void NodeReplacement::vacate() {
  if (!leaving_) {
    return;
  }
  const NodeId node = *leaving_;
  leaving_.reset();
  if (!job_.nodes.contains(node)) {
    return;  // it was lost in the meantime
  }
  // Whatever only this node has would be lost with it: the state, or a capsule whose other copy was in a process that
  // died at the same time or does not have it yet.
  bool others_have_all = true;
  bool others_hold_state = job_.version == 0;
  if (job_.holdings.sharded()) {
    std::set<NodeId> others = job_.placement.nodes();
    others.erase(node);
    const std::optional<Holdings::Kept> found = job_.kept(job_.decided->verdict, false, &others, nullptr);
    others_hold_state |= found && found->verdict.version == job_.version;
  }
  for (const Member& member : job_.round.members()) {
    if (member.node != node && !job_.holdings.sharded()) {
      others_have_all &= job_.alive(member) && job_.placement.at(member.rank).formed_holder == member.worker;
      others_hold_state |= job_.holds_state(member.rank);
    }
  }
  if (!others_have_all || !others_hold_state) {
    job_.journal("node_kept",
                 "the other nodes do not yet hold all of the state of node " + std::to_string(node) +
                     "; it is replaced at its next fault",
                 {{"bad_node", int64_t{node}}});
    return;
  }
  for (const auto& [id, worker] : job_.roster.all()) {
    if (worker.node == node && worker.status != Roster::Status::kGone) {
      job_.end_worker(id, job_.because);
      job_.roster.ask_for_exit(id);
    }
  }
  lose(node, job_.because);
  reassign_lost_nodes();
}

void NodeReplacement::lose(NodeId node, const std::string& what) {
  job_.placement.unassign(node);
  if (!job_.placement.unassigned().empty()) {
    loss_ = what;
    unassigned_since_ = job_.now;
  }
}

void NodeReplacement::cancel_vacating(NodeId node) {
  if (leaving_ == node) {
    leaving_.reset();
  }
}

void NodeReplacement::reassign_lost_nodes() {
  while (!job_.placement.unassigned().empty()) {
    const NodeId lost = job_.placement.at(*job_.placement.unassigned().begin()).node;
    const std::optional<NodeId> taker = replacement_for(lost);
    if (!taker) {
      return;
    }
    const std::vector<int64_t> moved = job_.placement.move(lost, *taker);
    job_.journal("node_replaced", loss_,
                 {{"lost_node", int64_t{lost}}, {"by_node", int64_t{*taker}}, {"ranks", moved}});
  }
}

// Of the nodes without ranks, the one with the fewest faults. The lost one may have come back, with another agent. A
// node whose ranks were taken away is better than none.
std::optional<NodeId> NodeReplacement::replacement_for(NodeId lost) const {
  std::optional<std::tuple<int, int, NodeId>> best;  // the lowest is the best
  // An elastic job shrinks rather than wait for a node that is not ready. If it may not shrink, any node will do.
  const bool only_ready =
      job_.config.elastic && job_.now - unassigned_since_ <= job_.config.elastic->faulty_scale_down_timeout;
  for (const auto& [node, endpoint] : job_.nodes) {
    if ((job_.placement.has_ranks(node) && node != lost) || job_.leaving_nodes.contains(node) ||
        (only_ready && job_.roster.parked_on(node) < job_.placement.ranks_on(lost))) {
      continue;
    }
    const int bad = job_.bad_nodes.contains(node) ? 2 : node == lost ? 1 : 0;
    const std::tuple candidate(bad, ladder_.faults_on(node, job_.now), node);
    best = best ? std::min(*best, candidate) : candidate;
  }
  return best ? std::optional(std::get<NodeId>(*best)) : std::nullopt;
}

// An elastic job first shrinks, if it may.
Time NodeReplacement::timeout() const {
  const MembershipConfig& config = job_.config;
  return config.node_timeout + (config.elastic ? config.elastic->faulty_scale_down_timeout : Time{});
}

void NodeReplacement::tell_of_waiting(NodeId lost) {
  const std::vector<Rank> unassigned = job_.placement.unassigned_of(lost);
  const std::string ends = seconds_text(job_.config.node_timeout);
  const std::string come = ". Start `keepstep run` there again, or on another machine: its ranks wait ";
  job_.say("node_awaited",
           loss_ + (job_.config.elastic
                        ? ", and no other node is ready" + come +
                              seconds_text(job_.config.elastic->faulty_scale_down_timeout) +
                              " for a node (faultyScaleDownTimeoutInSeconds), then the job continues without them; if "
                              "that is below its minimum size, it ends after " +
                              ends + " more (--node-timeout)"
                        : ", and no spare node waits (--spare-nodes)" + come + ends +
                              " for a node (--node-timeout), then the job ends"),
           {{"lost_node", int64_t{lost}},
            {"ranks", std::vector<int64_t>(unassigned.begin(), unassigned.end())},
            {"for_s", std::chrono::duration<double>(timeout()).count()}});
}

std::optional<std::string> NodeReplacement::nobody_came() const {
  if (job_.placement.unassigned().empty() || job_.now - unassigned_since_ < timeout()) {
    return std::nullopt;
  }
  return loss_ + ", and no other node came within " + seconds_text(timeout()) + " to take its ranks";
}

}  // namespace keepstep::brain
