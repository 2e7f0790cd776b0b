// Who pulls which bytes from whom (docs/design/hydration.md). Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace keepstep::brain {

// One protected tensor as the plan sees it: `bytes` long, wanted or not.
struct PlanEntry {
  uint64_t bytes = 0;
  bool wanted = true;
};

// Pull `bytes` bytes of entry `entry`, starting at `offset`, from source `source` (an index into the sources).
struct PlanRange {
  uint32_t entry = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t source = 0;
  bool operator==(const PlanRange&) const = default;
};

// Splits the wanted entries into ranges of at most `chunk_bytes`, striped so that each source gives an equal share to
// within one chunk and no byte is requested twice. `first_source` rotates the stripes, so that several targets do not
// start at the same source. Zero-byte entries give no range. Empty if there are no sources or nothing is wanted. The
// ranges of one source are in entry order (sequential reads).
std::vector<PlanRange> plan_hydration(const std::vector<PlanEntry>& entries, uint32_t sources, uint64_t chunk_bytes,
                                      uint32_t first_source = 0);

// The ranges that `lost` still owed, distributed over the other sources.
std::vector<PlanRange> replan_without(const std::vector<PlanRange>& owed, uint32_t lost, uint32_t sources);

}  // namespace keepstep::brain
