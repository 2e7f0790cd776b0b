#include "comm/collectives/canonical_tree.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"

namespace keepstep::comm {
namespace {

// Is [begin, leaves) a subtree? Those are the right edge of the tree.
bool on_right_edge(uint32_t leaves, uint32_t begin) {
  uint32_t at = 0;
  while (at < begin && leaves - at > 1) {
    at += std::bit_floor(leaves - at - 1);
  }
  return at == begin;
}

// The end of the largest subtree that begins at `begin` and does not go beyond `end`; begin < end <= leaves.
uint32_t end_of_largest(uint32_t leaves, uint32_t begin, uint32_t end) {
  if (end == leaves && on_right_edge(leaves, begin)) {
    return end;
  }
  const uint32_t room = std::bit_floor(end - begin);
  const uint32_t aligned = begin == 0 ? room : begin & -begin;
  return begin + std::min(room, aligned);
}

template <class Visit>
void visit_maximal(const LeafRun& run, Visit visit) {
  for (uint32_t at = run.begin; at < run.end;) {
    const uint32_t next = end_of_largest(run.leaves, at, run.end);
    visit(Subtree{at, next});
    at = next;
  }
}

}  // namespace

std::string why_not(const LeafRun& run) {
  if (run.leaves == 0 || run.leaves > kMaxLeaves) {
    return absl::StrFormat("a tree has 1 to %d leaves, not %d", kMaxLeaves, run.leaves);
  }
  if (run.begin > run.end || run.end > run.leaves) {
    return absl::StrFormat("[%d, %d) is no run of leaves of a tree over %d", run.begin, run.end, run.leaves);
  }
  return {};
}

std::vector<Subtree> maximal_subtrees(const LeafRun& run) {
  std::vector<Subtree> result;
  visit_maximal(run, [&](const Subtree& subtree) { result.push_back(subtree); });
  return result;
}

size_t count_maximal_subtrees(const LeafRun& run) {
  size_t count = 0;
  visit_maximal(run, [&](const Subtree&) { ++count; });
  return count;
}

size_t max_subtree_count(uint32_t leaves) { return std::max<size_t>(1, 2 * std::bit_width(leaves) - 2); }

size_t additions_after(uint32_t leaves, uint32_t begin, const Subtree& next) {
  return count_maximal_subtrees({leaves, begin, next.begin}) + 1 - count_maximal_subtrees({leaves, begin, next.end});
}

LeafRun even_run(uint32_t leaves, size_t member, size_t members) {
  const auto each = static_cast<uint32_t>(leaves / members);
  const auto more = static_cast<uint32_t>(leaves % members);
  const auto index = static_cast<uint32_t>(member);
  const uint32_t begin = index * each + std::min(index, more);
  return {leaves, begin, begin + each + (index < more ? 1 : 0)};
}

}  // namespace keepstep::comm
