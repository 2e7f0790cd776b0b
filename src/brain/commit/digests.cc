#include "brain/commit/digests.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace keepstep::brain {
namespace {

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() == 1 ? " has " : " have ");
}

// The largest group first, so that the odd ones come last.
std::string camps_text(const std::map<StepDigest, std::vector<Rank>>& camps, bool state) {
  std::vector<const std::pair<const StepDigest, std::vector<Rank>>*> ordered;
  for (const auto& camp : camps) {
    ordered.push_back(&camp);
  }
  std::sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {
    return a->second.size() != b->second.size() ? a->second.size() > b->second.size() : a->second < b->second;
  });
  std::string text;
  for (const auto* camp : ordered) {
    text += (text.empty() ? "" : ", ") + ranks_text(camp->second) + digest_text(camp->first, state);
  }
  return text;
}

}  // namespace

std::string digest_text(const StepDigest& digest, bool state) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%016llx",
                static_cast<unsigned long long>(state ? digest.state : digest.gradients));
  return text;
}

std::optional<Disagreement> compare(Step step, std::vector<RankDigest> said) {
  std::map<StepDigest, std::vector<Rank>> camps;
  std::sort(said.begin(), said.end(), [](const RankDigest& a, const RankDigest& b) { return a.rank < b.rank; });
  for (const RankDigest& each : said) {
    camps[each.digest].push_back(each.rank);
  }
  if (camps.size() < 2) {
    return std::nullopt;
  }
  Disagreement found{.step = step, .said = std::move(said), .odd = {}, .state = false, .text = {}};
  for (const RankDigest& each : found.said) {
    found.state = found.state || each.digest.state != found.said.front().digest.state;
    if (const size_t camp = camps.at(each.digest).size(); 2 * camp <= found.said.size()) {
      found.odd.push_back(each);
    }
  }
  if (found.odd.size() == found.said.size()) {
    found.odd.clear();
  }
  const std::string what = found.state ? "the protected state at step " + std::to_string(step - 1)
                                       : "the gradients of step " + std::to_string(step);
  found.text = what + (found.state ? " differs: " : " differ: ") + camps_text(camps, found.state);
  return found;
}

}  // namespace keepstep::brain
