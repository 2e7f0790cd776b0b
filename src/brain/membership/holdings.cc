#include "brain/membership/holdings.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {

std::optional<Version> Holdings::begun_below(Version version, uint32_t generation) const {
  const auto later =
      std::find_if(begun_.begin(), begun_.end(), [&](const Begun& begun) { return begun.generation > generation; });
  return later != begun_.end() && version > later->version ? std::optional(later->version) : std::nullopt;
}

void Holdings::start_again(uint32_t generation) {
  *this = Holdings();
  functions_until_ = generation;
}

void Holdings::note(WorkerId worker, std::optional<Version> version) {
  if (version) {
    holds_[worker] = *version;
  } else {
    holds_.erase(worker);
  }
}

bool Holdings::holds(WorkerId worker, Version version) const {
  const auto found = holds_.find(worker);
  return found != holds_.end() && found->second == version;
}

void Holdings::begin(uint32_t generation, Version version, Rank world, bool is_start) {
  while (!begun_.empty() && begun_.back().version >= version) {
    begun_.pop_back();
  }
  begun_.push_back({generation, version});
  if (std::exchange(resharded_, false)) {
    sharding_ = {generation, world};
  }
  if (!sharded_ || is_start) {
    kept_in_ = sharding_;  // nothing needs to be moved
  }
}

void Holdings::forget_copies() {
  copies_.clear();
  parity_.clear();
}

void Holdings::note_copies(const Sealed& answer) {
  copies_[answer.node] = answer.copies;
  parity_[answer.node] = answer.parity;
}

void Holdings::lose(NodeId node) {
  copies_.erase(node);
  parity_.erase(node);
}

std::optional<Holdings::Kept> Holdings::newest_kept(const Verdict& verdict, Identity identity,
                                                    const std::vector<SealedWord>& living, bool resharded,
                                                    const std::set<NodeId>* only, std::string* missing) const {
  const auto counts = [only](NodeId node) { return only == nullptr || only->contains(node); };
  std::vector<SealedWord> processes;
  for (const SealedWord& word : living) {
    // A process that has not entered this sharding yet holds a part of another one.
    if (!resharded && word.word.identity.generation >= sharding_.number) {
      processes.push_back(word);
    }
  }
  std::set<ShardCopy> copies;
  for (const auto& [node, held] : copies_) {
    if (counts(node)) {
      copies.insert(held.begin(), held.end());
    }
  }
  std::set<ParityCopy> parity;  // state that is resharded is not rebuilt from parity
  for (const auto& [node, held] : parity_) {
    if (!resharded && counts(node)) {
      parity.insert(held.begin(), held.end());
    }
  }
  std::optional<Kept> best;
  if (auto found = newest_whole(verdict, identity, origin_, sharding_, processes, copies, parity, missing)) {
    best = Kept{*found, sharding_};
  }
  if (kept_in_ != sharding_) {
    const auto found = newest_whole(verdict, identity, origin_, kept_in_, {}, copies, {}, nullptr);
    // Until a step is done in the new sharding, the old one has more copies.
    if (found && (!best || found->version >= best->verdict.version)) {
      best = Kept{*found, kept_in_};
    }
  }
  return best;
}

}  // namespace keepstep::brain
