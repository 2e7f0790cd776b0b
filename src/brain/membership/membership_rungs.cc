// The third part of the membership brain: which rung a fault takes, and what the rungs beyond a replaced process do.

#include <algorithm>
#include <tuple>

#include "brain/membership/membership.h"
#include "brain/membership/membership_text.h"

namespace keepstep::brain {

void Membership::take_rung(Fault fault) {
  if (fault.kind != FaultKind::kNoSource && gives_up_growth(fault.rank, fault.what)) {
    return;
  }
  if (fault.rank < round_.members().size()) {
    const NodeId node = round_.members()[fault.rank].node;
    fault.node = fault.kind == FaultKind::kLink ? end_to_blame(node) : node;
    fault.place = place_of(fault.node);
  }
  const LadderDecision decision = ladder_.on_fault(fault, now_);
  std::vector<Field> fields = {{"rung", std::string(name(decision.rung))}};
  if (decision.rung == Rung::kReplaceNode) {
    fields.push_back({"bad_node", int64_t{decision.node}});
  }
  journal("rung", decision.because, std::move(fields));
  after_fault_ = true;
  switch (decision.rung) {
    case Rung::kRedo:
    case Rung::kReplace:
      seal(fault.what);
      break;
    case Rung::kReplaceNode:
      bad_nodes_.insert(decision.node);
      leaving_ = decision.node;
      seal(decision.because);
      break;
    case Rung::kRestartWithState:
      outdated_.clear();
      for (const Member& member : round_.members()) {
        if (alive(member)) {
          outdated_.insert(member.worker);
        }
      }
      renewal_due_ = true;
      seal(decision.because);
      break;
    case Rung::kRestart:
      restart(decision.because);
      break;
    case Rung::kEnd:
      end(decision.exit_code, decision.because, decision.traceback);
      break;
  }
}

// ---- rung 2: a spare node takes the place of a node that works badly ----------------------------------------------

NodePlace Membership::place_of(NodeId node) const {
  if ((elastic_ ? config_.most_nodes : config_.nodes) + config_.spare_nodes == 1) {
    return NodePlace::kOnly;
  }
  if (placement_.first_node() == node) {
    return NodePlace::kHasRank0;
  }
  if (!nodes_.contains(node)) {
    return NodePlace::kGone;
  }
  const bool spare = std::any_of(nodes_.begin(), nodes_.end(), [this, node](const auto& each) {
    return !placement_.has_ranks(each.first) && !bad_nodes_.contains(each.first) &&
           (!elastic_ || roster_.parked_on(each.first) >= placement_.ranks_on(node));
  });
  return spare ? NodePlace::kReplaceable : NodePlace::kNoSpare;
}

// Of the nodes that told of broken connections the one that did so most often (it reaches the fewest others), else the
// one with the higher number. The node of rank 0 has to stay; where only that one told, the other end is known if there
// are just two nodes with ranks.
NodeId Membership::end_to_blame(NodeId reporter) const {
  const NodeId first = placement_.first_node();
  std::pair<int, NodeId> most{0, reporter};
  for (const auto& [node, reports] : link_reports_) {
    if (node != first) {
      most = std::max(most, std::pair(reports, node));
    }
  }
  if (const std::set<NodeId> nodes = placement_.nodes(); most.second == first && nodes.size() == 2) {
    return *std::find_if(nodes.begin(), nodes.end(), [first](NodeId node) { return node != first; });
  }
  return most.second;
}

// As for a lost node, but what it knew of the last step is in the verdict already, and its agent stays, without ranks.
void Membership::vacate() {
  if (!leaving_) {
    return;
  }
  const NodeId node = *leaving_;
  leaving_.reset();
  if (!nodes_.contains(node)) {
    return;  // lost meanwhile
  }
  // What only this node has would be lost with it: the state, or a capsule whose copy another process had, one that
  // died at the same time or has none yet.
  bool others_have_all = true;
  bool others_hold_state = version_ == 0;
  if (holdings_.sharded()) {
    std::set<NodeId> others = placement_.nodes();
    others.erase(node);
    const std::optional<Holdings::Kept> found = kept(decided_->verdict, false, &others, nullptr);
    others_hold_state |= found && found->verdict.version == version_;
  }
  for (const Member& member : round_.members()) {
    if (member.node != node && !holdings_.sharded()) {
      others_have_all &= alive(member) && placement_.at(member.rank).formed_holder == member.worker;
      others_hold_state |= holds_state(member.rank);
    }
  }
  if (!others_have_all || !others_hold_state) {
    journal(
        "node_kept",
        "other nodes do not have all that node " + std::to_string(node) + " has right now; it goes at its next fault",
        {{"bad_node", int64_t{node}}});
    return;
  }
  node_loss_ = because_;
  homeless_since_ = now_;
  for (const auto& [id, worker] : roster_.all()) {
    if (worker.node == node && worker.status != Status::kGone) {
      end_worker(id, because_);
      roster_.ask_for_exit(id);
    }
  }
  placement_.lose_home(node);
  house();
}

// The ranks of each lost node move, together, to a node that has none.
void Membership::house() {
  while (!placement_.homeless().empty()) {
    const NodeId lost = placement_.at(*placement_.homeless().begin()).node;
    const std::optional<NodeId> taker = taker_for(lost);
    if (!taker) {
      return;
    }
    const std::vector<int64_t> moved = placement_.move(lost, *taker);
    journal("node_replaced", node_loss_,
            {{"lost_node", int64_t{lost}}, {"by_node", int64_t{*taker}}, {"ranks", moved}});
  }
}

// Of the nodes without ranks the one with the fewest faults. The lost one may have come back, with another agent. A
// node whose ranks were taken away is better than none.
std::optional<NodeId> Membership::taker_for(NodeId lost) const {
  std::optional<std::tuple<int, int, NodeId>> best;  // the least is the best
  // An elastic job would rather go on smaller than wait for a node that is not ready. If it may not, any will do.
  const bool only_ready = elastic_ && now_ - homeless_since_ <= config_.elastic->faulty_scale_down_timeout;
  for (const auto& [node, endpoint] : nodes_) {
    if ((placement_.has_ranks(node) && node != lost) || leaving_nodes_.contains(node) ||
        (only_ready && roster_.parked_on(node) < placement_.ranks_on(lost))) {
      continue;
    }
    const int bad = bad_nodes_.contains(node) ? 2 : node == lost ? 1 : 0;
    const std::tuple candidate(bad, ladder_.faults_on(node, now_), node);
    best = best ? std::min(*best, candidate) : candidate;
  }
  return best ? std::optional(std::get<NodeId>(*best)) : std::nullopt;
}

bool Membership::waits_unused(NodeId node) const { return bad_nodes_.contains(node) && !placement_.has_ranks(node); }

// ---- rung 3: all processes anew, with the state of those that hold it ---------------------------------------------

// In two halves, so that the state is never in one process alone where it was in several: of the clean members every
// second one stays while all others are replaced and hydrated; once that generation has formed, those that stayed are.
void Membership::renew() {
  if (!renewal_due_) {
    return;
  }
  renewal_due_ = false;
  std::vector<WorkerId> old_ones;
  bool new_ones = false;
  for (const Member& member : round_.members()) {
    if (!alive(member) || !holds_state(member.rank)) {
      continue;
    }
    if (outdated_.contains(member.worker)) {
      old_ones.push_back(member.worker);
    } else {
      new_ones = true;
    }
  }
  std::set<WorkerId> stay;
  if (version_ > 0 && !new_ones) {
    for (size_t i = 0; i < old_ones.size(); i += 2) {
      stay.insert(old_ones[i]);
    }
    if (stay.empty()) {
      return;  // whether anybody has the state will be known when all are ready; then this is tried again
    }
  }
  std::vector<int64_t> replaced;
  std::vector<int64_t> stayed;
  for (const Member& member : round_.members()) {
    if (!alive(member) || !outdated_.contains(member.worker)) {
      continue;
    }
    (stay.contains(member.worker) ? stayed : replaced).push_back(member.rank);
  }
  if (replaced.empty() && round_.members().size() == 1) {
    outdated_.clear();  // the world shrank to one rank meanwhile: nobody else could keep the state for it
    return;
  }
  journal("restart_with_state", because_,
          {{"version", static_cast<int64_t>(version_)}, {"restarted", replaced}, {"later", stayed}});
  for (const int64_t rank : replaced) {
    const WorkerId worker = round_.members()[static_cast<size_t>(rank)].worker;
    end_worker(worker, because_);
    roster_.await_exit(worker);
  }
  outdated_ = std::move(stay);
}

// The generation has formed: the new processes have the state. At the job's end nobody is interrupted for this.
void Membership::renew_the_rest() {
  std::erase_if(outdated_, [this](WorkerId id) { return roster_.at(id).status != Status::kMember; });
  if (outdated_.empty() || phase_ != Phase::kRunning || round_.released() || round_.anybody_through()) {
    return;
  }
  renewal_due_ = true;
  seal("the restart of all processes goes on: the new ones have the state, now the others are replaced");
}

// Of a sealed member, after the verdict: it has the state at `version_`, or comes to it.
bool Membership::holds_state(Rank rank) const { return holdings_.holds(round_.members()[rank].worker, version_); }

// ---- rung 4: the job starts again ---------------------------------------------------------------------------------

void Membership::restart(const std::string& because) {
  clear_for_restart(because);
  gather();
}

void Membership::clear_for_restart(const std::string& because) {
  journal("restart", because,
          {{"lost_steps", static_cast<int64_t>(std::max(version_, progress_) - holdings_.origin())}});
  because_ = because;
  for (const Member& member : round_.members()) {
    if (alive(member)) {
      end_worker(member.worker, because);
      roster_.await_exit(member.worker);
    }
  }
  for (const auto& [id, worker] : roster_.all()) {
    if (worker.left && worker.status != Status::kGone) {
      end_worker(id, because);  // with a state that the new start must not take for its own
      roster_.await_exit(id);
    }
  }
  placement_.forget_formed();
  round_ = Round(round_.identity());  // late news of the old generation must not count for the new start
  decided_.reset();
  suspected_.reset();
  outdated_.clear();
  renewal_due_ = false;
  leaving_.reset();
  pausing_ = false;
  version_ = holdings_.origin();
  progress_ = version_;
  cause_ = Cause::kRestart;
  phase_ = Phase::kGathering;
}

void Membership::end_worker(WorkerId worker, const std::string& because) {
  retire(worker);
  kill(worker, because);
}

}  // namespace keepstep::brain
