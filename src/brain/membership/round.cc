#include "brain/membership/round.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {

Round::Round(Prepare prepare) : prepare_(std::move(prepare)) {
  for (const Member& member : members()) {
    ranks_of_[member.node].push_back(member.rank);
  }
}

bool Round::form() { return activated_ && !std::exchange(formed_, true); }

bool Round::all_wait_for_exited() const {
  const std::set<Rank>& exited = ending_.exited();
  return !exited.empty() && !answers_.empty() && exited.size() + answers_.size() >= members().size() &&
         std::all_of(members().begin(), members().end(), [this, &exited](const Member& member) {
           return exited.contains(member.rank) || answers_.contains(member.rank);
         });
}

void Round::seal(std::set<Rank> awaited) {
  paused_.clear();
  sealed_nodes_.clear();
  words_.clear();
  results_.clear();
  awaited_ = std::move(awaited);
}

bool Round::take(const Sealed& answer) {
  const auto ranks = ranks_of_.find(answer.node);
  const bool first = ranks != ranks_of_.end() && sealed_nodes_.insert(answer.node).second;
  for (const SealedWord& word : answer.words) {
    if (is_member(word.worker, word.rank) && members()[word.rank].node == answer.node) {
      words_.emplace(word.rank, word);
      awaited_.erase(word.rank);
    }
  }
  if (answer.mean_step != 0) {
    results_[answer.mean_step] = {answer.mean_loss, answer.mean_flags};
  }
  if (!activated_ && ranks != ranks_of_.end()) {
    for (const Rank rank : ranks->second) {
      awaited_.erase(rank);
    }
  }
  return first;
}

bool Round::all_nodes_answered() const {
  return std::all_of(ranks_of_.begin(), ranks_of_.end(), [this](const auto& ranks) {
    return sealed_nodes_.contains(ranks.first) || lost_nodes_.contains(ranks.first);
  });
}

std::vector<SealedWord> Round::all_words() const {
  std::vector<SealedWord> words;
  for (const auto& [rank, word] : words_) {
    words.push_back(word);
  }
  return words;
}

std::optional<Round::StepResult> Round::outcome(Step step) const {
  const auto found = results_.find(step);
  return found == results_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace keepstep::brain
