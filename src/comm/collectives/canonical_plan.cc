#include "comm/collectives/canonical_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"

namespace keepstep::comm {
namespace {

std::string not_a_tree(const Subtree& which, uint32_t leaves, bool twice, const std::string& who) {
  return absl::StrFormat(
      "leaves [%d, %d) of %d are %s: %s. Each leaf must be one rank's; does every rank count the same "
      "world and the same micro-batches?",
      which.begin, which.end, leaves, twice ? "two ranks'" : "nobody's", who);
}

}  // namespace

std::string CanonicalPlan::learn(const Group& group, uint32_t leaves, std::span<const CanonicalPart> parts) {
  std::vector<LeafRun> runs;
  for (size_t member = 0; member < parts.size(); ++member) {
    runs.push_back({leaves, parts[member].begin, parts[member].end});
    if (const std::string why = why_not(runs.back()); !why.empty()) {
      return absl::StrFormat("%s says %s; its memory is damaged", rank_list(group, {&member, 1}), why);
    }
    most = std::max(most, count_maximal_subtrees(runs.back()));
    weight += parts[member].weight;
  }
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return runs[a].begin < runs[b].begin; });
  uint32_t at = 0;
  std::string before;  // who brings the leaves up to `at`
  for (const size_t member : order) {
    const LeafRun& run = runs[member];
    if (run.empty()) {
      continue;
    }
    const std::string words =
        absl::StrFormat("%s brings leaves [%d, %d)", rank_list(group, {&member, 1}), run.begin, run.end);
    const std::string both = before.empty() ? words : absl::StrCat(before, "; ", words);
    if (run.begin < at) {
      return not_a_tree({run.begin, std::min(at, run.end)}, leaves, true, both);
    }
    if (run.begin > at) {
      return not_a_tree({at, run.begin}, leaves, false, both);
    }
    size_t partial = 0;
    for (const Subtree& subtree : maximal_subtrees(run)) {
      sources.push_back({subtree, member, partial++});
    }
    at = run.end;
    before = words;
  }
  if (at != leaves) {
    return not_a_tree({at, leaves}, leaves, false, before.empty() ? "all ranks bring none" : before);
  }
  return {};
}

}  // namespace keepstep::comm
