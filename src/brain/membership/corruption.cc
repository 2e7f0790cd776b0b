#include "brain/membership/corruption.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "brain/text.h"

namespace keepstep::brain {

Corruption::Judgement Corruption::judge(const std::vector<SealedWord>& words) {
  using What = Judgement::What;
  const std::optional<Disagreement> found = disagreement(job_.round.identity(), job_.version + 1, words);
  if (!found) {
    return {};
  }
  const std::vector<Member>& members = job_.round.members();
  if (!found->odd.empty()) {
    note(*found, found->odd, found->text);
    suspected_.reset();
    const bool others_live = std::any_of(members.begin(), members.end(), [&](const Member& member) {
      return job_.alive(member) && std::none_of(found->odd.begin(), found->odd.end(),
                                                [&](const RankDigest& each) { return each.rank == member.rank; });
    });
    if (others_live) {
      (void)dismiss(found->odd, found->text);
      return {What::kDismissed, found->text, found->odd};
    }
    // Gradients are dropped in any case, and the state that they were computed from is the last one.
    return found->state ? Judgement{What::kNoSource, found->text + "; no other rank is left"} : Judgement{};
  }
  note(*found, {}, found->text + "; neither is a majority");
  const bool again = suspected_ && suspected_->step == found->step && found->said.size() == members.size();
  if (found->state || again) {
    return {What::kUnknown,
            found->text +
                (found->state ? "; without a majority nobody can tell which is right"
                              : "; without a majority, and a redo gave different bits again, nobody can tell "
                                "which is right") +
                ". Check the memory of these nodes, and whether all operations are deterministic; three ranks or more "
                "outvote one that lies"};
  }
  suspected_ = found;
  return {};
}

std::optional<Corruption::Dismissed> Corruption::judge_by_redo(const Progress& event) {
  if (!suspected_ || event.version < suspected_->step) {
    return std::nullopt;
  }
  const Disagreement found = *std::exchange(suspected_, std::nullopt);
  if (event.version > found.step || !event.digest) {
    return std::nullopt;
  }
  std::vector<RankDigest> odd;
  std::copy_if(found.said.begin(), found.said.end(), std::back_inserter(odd),
               [&](const RankDigest& each) { return each.digest != *event.digest; });
  const std::string redo = digest_text(*event.digest, false);
  if (odd.size() == found.said.size()) {
    note(found, {},
         "the redo of step " + std::to_string(found.step) + " gave " + redo +
             ", which no rank had on the first try: " + found.text + "; are all operations deterministic?");
    return std::nullopt;
  }
  const std::string because = found.text + "; the redo gave " + redo + ", so " + rank_text(odd.front().rank) +
                              (odd.size() > 1 ? " and others were wrong" : " was wrong");
  note(found, odd, because);
  if (job_.round.ending().released()) {
    return std::nullopt;  // the job is over, and its last step was agreed on
  }
  const std::optional<Rank> rank = dismiss(odd, because);
  return rank ? std::optional(Dismissed{*rank, because}) : std::nullopt;
}

bool Corruption::suspects(WorkerId worker) const {
  return suspected_ && std::any_of(suspected_->said.begin(), suspected_->said.end(),
                                   [worker](const RankDigest& said) { return said.worker == worker; });
}

// The node is named, so that a reader of the journal can take it out of service.
void Corruption::note(const Disagreement& found, const std::vector<RankDigest>& odd, const std::string& because) {
  std::vector<int64_t> ranks;
  std::vector<int64_t> workers;
  std::vector<int64_t> nodes;
  for (const RankDigest& each : odd) {
    ranks.push_back(each.rank);
    workers.push_back(each.worker);
    if (const Roster::Worker* worker = job_.roster.find(each.worker)) {
      nodes.push_back(worker->node);
    }
  }
  job_.journal("corruption", because,
               {{"step", static_cast<int64_t>(found.step)},
                {"what", std::string(found.state ? "state" : "gradients")},
                {"ranks", ranks},
                {"workers", workers},
                {"nodes", nodes}});
}

// Returns the lowest rank that was alive.
std::optional<Rank> Corruption::dismiss(const std::vector<RankDigest>& odd, const std::string& because) {
  std::optional<Rank> first;
  for (const RankDigest& each : odd) {
    if (job_.round.is_member(each.worker, each.rank) && job_.alive(job_.round.members()[each.rank])) {
      first = first.value_or(each.rank);
      job_.retire(each.worker);
      job_.fence(each.worker, because);
    }
  }
  return first;
}

}  // namespace keepstep::brain
