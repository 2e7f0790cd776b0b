#include "brain/reshard/hydration_plan.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "brain/require.h"

namespace keepstep::brain {
namespace {

// Gives each piece to the source with the fewest bytes so far, so shares never differ by more than one piece.
class Dealer {
 public:
  Dealer(uint32_t sources, uint32_t first) : sources_(sources), first_(first) {}

  void add(uint32_t source, uint64_t load) { loads_.emplace(load, (source + sources_ - first_ % sources_) % sources_); }

  uint32_t deal(uint64_t bytes) {
    const auto [load, turn] = loads_.top();
    loads_.pop();
    loads_.emplace(load + bytes, turn);
    return (turn + first_ % sources_) % sources_;
  }

 private:
  using Load = std::pair<uint64_t, uint32_t>;  // bytes, place in the rotation
  uint32_t sources_;
  uint32_t first_;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads_;
};

}  // namespace

std::vector<PlanRange> plan_hydration(const std::vector<PlanEntry>& entries, uint32_t sources, uint64_t chunk_bytes,
                                      uint32_t first_source) {
  require(chunk_bytes > 0, "a plan needs chunks of at least one byte");
  std::vector<PlanRange> plan;
  if (sources == 0) {
    return plan;
  }
  Dealer dealer(sources, first_source);
  for (uint32_t source = 0; source < sources; ++source) {
    dealer.add(source, 0);
  }
  for (uint32_t entry = 0; entry < entries.size(); ++entry) {
    const uint64_t wanted = entries[entry].wanted ? entries[entry].bytes : 0;
    for (uint64_t offset = 0; offset < wanted;) {
      const uint64_t bytes = std::min(chunk_bytes, wanted - offset);
      plan.push_back(PlanRange{entry, offset, bytes, dealer.deal(bytes)});
      offset += bytes;
    }
  }
  return plan;
}

std::vector<PlanRange> replan_without(const std::vector<PlanRange>& owed, uint32_t lost, uint32_t sources) {
  std::vector<PlanRange> plan;
  if (sources < 2) {
    return plan;
  }
  std::vector<uint64_t> loads(sources, 0);
  for (const PlanRange& range : owed) {
    require(range.source < sources, "a range names a source that does not exist");
    loads[range.source] += range.bytes;
  }
  Dealer dealer(sources, lost + 1);
  for (uint32_t source = 0; source < sources; ++source) {
    if (source != lost) {
      dealer.add(source, loads[source]);
    }
  }
  for (const PlanRange& range : owed) {
    if (range.source == lost) {
      plan.push_back(PlanRange{range.entry, range.offset, range.bytes, dealer.deal(range.bytes)});
    }
  }
  return plan;
}

}  // namespace keepstep::brain
