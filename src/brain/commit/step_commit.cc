#include "brain/commit/step_commit.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {
namespace {

// The version that this word proves was committed.
Version proven_by(const StepWord& word) {
  if (word.vote == Vote::kDecided) {
    return word.step;
  }
  return word.step == 0 ? 0 : word.step - 1;
}

bool voted_on(const SealedWord& survivor, Identity identity, Step step) {
  return survivor.word.identity == identity && survivor.word.step == step && survivor.word.vote != Vote::kOpen;
}

std::string rank_text(Rank rank) { return "rank " + std::to_string(rank); }

// A decided step that a survivor has yet to apply: the verdict names the ranks that knew.
std::string known_as_committed(Identity identity, Step step, const std::vector<SealedWord>& survivors) {
  for (const SealedWord& survivor : survivors) {
    if (survivor.word.identity == identity && survivor.word.step == step && survivor.word.vote == Vote::kDecided) {
      return rank_text(survivor.rank) + " had recorded step " + std::to_string(step) + " as decided";
    }
  }
  for (const SealedWord& survivor : survivors) {
    if (survivor.word.identity == identity && survivor.word.step == step + 1) {
      return rank_text(survivor.rank) + " was past step " + std::to_string(step) + " already";
    }
  }
  return "step " + std::to_string(step) + " was committed before";
}

}  // namespace

std::optional<Disagreement> disagreement(Identity identity, Step step, const std::vector<SealedWord>& survivors) {
  std::vector<RankDigest> said;
  for (const SealedWord& survivor : survivors) {
    const StepWord& word = survivor.word;
    if (survivor.digest && word.identity == identity && word.step == step && word.vote == Vote::kYes) {
      said.push_back({survivor.rank, survivor.worker, *survivor.digest});
    }
  }
  return compare(step, std::move(said));
}

std::optional<Version> version_once_told(const SealedWord& rank, Version told) {
  const auto& [kind, version] = rank.state;
  if (kind != StateKind::kClean && kind != StateKind::kUpdating) {
    return std::nullopt;
  }
  const bool ends_update = kind == StateKind::kUpdating && rank.word.vote == Vote::kDecided;
  const bool counts = rank.word.step == version + 1 && rank.word.vote != Vote::kOpen && told == version + 1;
  return ends_update || counts ? version + 1 : version;
}

Verdict decide(Identity identity, Version floor, const std::vector<SealedWord>& survivors, bool across) {
  if (survivors.empty()) {
    return Verdict{floor, false, "no survivor is left"};
  }
  Version base = floor;
  for (const SealedWord& survivor : survivors) {
    if (survivor.word.identity == identity) {
      base = std::max(base, proven_by(survivor.word));
    }
  }
  const Step next = base + 1;
  const auto holdout = std::find_if(survivors.begin(), survivors.end(),
                                    [&](const SealedWord& survivor) { return !voted_on(survivor, identity, next); });
  if (holdout == survivors.end()) {
    if (const std::optional<Disagreement> differ = disagreement(identity, next, survivors)) {
      return Verdict{base, false, differ->text};
    }
  }
  if (holdout == survivors.end() && !across) {
    return Verdict{next, true, "every survivor had voted on step " + std::to_string(next)};
  }
  const bool somebody_applies_base = std::any_of(survivors.begin(), survivors.end(), [&](const SealedWord& survivor) {
    return base > floor && voted_on(survivor, identity, base);
  });
  if (somebody_applies_base) {
    return Verdict{base, true, known_as_committed(identity, base, survivors)};
  }
  if (holdout == survivors.end()) {
    return Verdict{base, false, "rank 0 had not recorded step " + std::to_string(next) + " as decided"};
  }
  return Verdict{base, false, rank_text(holdout->rank) + " had not voted on step " + std::to_string(next)};
}

}  // namespace keepstep::brain
