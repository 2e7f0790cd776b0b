// Who is lying: what follows where ranks voted for different things (docs/design/corruption.md).

#include <algorithm>
#include <iterator>
#include <utility>

#include "brain/membership/membership.h"
#include "brain/membership/membership_text.h"

namespace keepstep::brain {

// The verdict is a redo already; this decides with whom. Returns whether the recovery goes on from here.
bool Membership::judge(const std::vector<SealedWord>& words) {
  const std::optional<Disagreement> found = disagreement(round_.identity(), version_ + 1, words);
  if (!found) {
    return true;
  }
  if (!found->odd.empty()) {
    note_corruption(*found, found->odd, found->text);
    suspected_.reset();
    const bool others_live = std::any_of(round_.members().begin(), round_.members().end(), [&](const Member& member) {
      return alive(member) && std::none_of(found->odd.begin(), found->odd.end(),
                                           [&](const RankDigest& each) { return each.rank == member.rank; });
    });
    if (!others_live && found->state) {
      take_rung(Fault{FaultKind::kNoSource, 0, current_step(), 1, found->text + "; no other rank is left", ""});
      return false;
    }
    if (others_live) {  // else: gradients are dropped in any case, and the state that they came from is the last one
      (void)dismiss(found->odd, found->text);
      leave_lying_node(found->odd, found->text);
    }
    return true;
  }
  note_corruption(*found, {}, found->text + "; neither is a majority");
  const bool again = suspected_ && suspected_->step == found->step && found->said.size() == round_.members().size();
  if (found->state || again) {
    end(1,
        found->text +
            (found->state ? "; without a majority nobody can tell which is right"
                          : "; without a majority, and a redo gave different bits again, nobody can tell "
                            "which is right") +
            ". Check the memory of these nodes, and whether all operations are deterministic; three ranks or more "
            "outvote one that lies",
        "");
    return false;
  }
  suspected_ = found;
  return true;
}

// Two differed and the redo went well: the one whose first digest the redo gave again was right.
void Membership::judge_by_redo(const Progress& event) {
  if (!suspected_ || event.version < suspected_->step) {
    return;
  }
  const Disagreement found = *std::exchange(suspected_, std::nullopt);
  if (event.version > found.step || !event.digest) {
    return;
  }
  std::vector<RankDigest> odd;
  std::copy_if(found.said.begin(), found.said.end(), std::back_inserter(odd),
               [&](const RankDigest& each) { return each.digest != *event.digest; });
  if (odd.size() == found.said.size()) {
    note_corruption(found, {},
                    "the redo of step " + std::to_string(found.step) + " gave " + digest_text(*event.digest, false) +
                        ", which nobody had in the first try: " + found.text + "; are all operations deterministic?");
    return;
  }
  const std::string because = found.text + "; the redo gave " + digest_text(*event.digest, false) + ", so " +
                              rank_text(odd.front().rank) + (odd.size() > 1 ? " and others were wrong" : " was wrong");
  note_corruption(found, odd, because);
  if (round_.released()) {
    return;  // the job is over, and its last step was agreed on
  }
  if (const std::optional<Rank> rank = dismiss(odd, because)) {
    member_died(*rank, true, 1, because, "");
  }
}

// The node is named, so that whoever reads the journal can take it out of service.
void Membership::note_corruption(const Disagreement& found, const std::vector<RankDigest>& odd,
                                 const std::string& because) {
  std::vector<int64_t> ranks;
  std::vector<int64_t> workers;
  std::vector<int64_t> nodes;
  for (const RankDigest& each : odd) {
    ranks.push_back(each.rank);
    workers.push_back(each.worker);
    if (const Worker* worker = roster_.find(each.worker)) {
      nodes.push_back(worker->node);
    }
  }
  journal("corruption", because,
          {{"step", static_cast<int64_t>(found.step)},
           {"what", std::string(found.state ? "state" : "gradients")},
           {"ranks", ranks},
           {"workers", workers},
           {"nodes", nodes}});
}

// They are no members any more: nobody takes their state for a source. Returns the lowest rank that lived.
std::optional<Rank> Membership::dismiss(const std::vector<RankDigest>& odd, const std::string& because) {
  std::optional<Rank> first;
  for (const RankDigest& each : odd) {
    if (each.rank < round_.members().size() && round_.members()[each.rank].worker == each.worker &&
        alive(round_.members()[each.rank])) {
      first = first.value_or(each.rank);
      retire(each.worker);
      fence(each.worker, because);
    }
  }
  return first;
}

// Lies count against a node as deaths do. What it leaves is gathered after the verdict (vacate).
void Membership::leave_lying_node(const std::vector<RankDigest>& odd, const std::string& because) {
  for (const RankDigest& each : odd) {
    const NodeId node = round_.members()[each.rank].node;
    if (!ladder_.on_lie(node, place_of(node), now_) || leaving_) {
      continue;
    }
    bad_nodes_.insert(node);
    leaving_ = node;
    const int faults = ladder_.faults_on(node, now_);
    because_ = because + "; node " + std::to_string(node) + " had " + std::to_string(faults) +
               (faults == 1 ? " fault" : " faults") + " within " + seconds_text(config_.ladder.node_window) +
               ": its ranks move to a spare node";
    journal("rung", because_, {{"rung", std::string(name(Rung::kReplaceNode))}, {"bad_node", int64_t{node}}});
  }
}

}  // namespace keepstep::brain
