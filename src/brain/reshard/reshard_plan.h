// Who pulls which parts of which tensors from whom, if sources and targets cut them differently
// (docs/design/sharded.md). Pure.
//
// What one rank needs and what sources have (live peers, copies in memory, disk, S3) is expressed in DCP's terms: boxes
// of named tensors. The plan pulls every needed element exactly once, from the nearest sources that have it; equally
// near sources share it evenly. brain/reshard/hydration_plan.h is the special case in which every rank has everything
// and the order of small chunks over the sources matters. Here a source's share stays in one piece if possible, because
// one read of a disk or of S3 costs as much as many bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/reshard/box.h"
#include "brain/types.h"

namespace keepstep::brain {

// A part of a tensor, stored without gaps in row-major order.
struct ShardEntry {
  std::string name;
  std::string dtype;            // "float32"; the same on both sides, nothing is converted
  uint32_t element_bytes = 0;   // at least 1
  std::vector<uint64_t> shape;  // of the whole tensor
  Box box;
  bool operator==(const ShardEntry&) const = default;
};

struct ShardSource {
  uint32_t distance = 0;  // nearest sources are asked first; the caller defines what the numbers mean
  Version version = 0;
  std::vector<ShardEntry> entries;
};

struct ReshardOptions {
  Version version = 0;                      // sources with another version are left out
  uint64_t least_stripe_bytes = 256 << 10;  // no share is cut smaller than this; at least 1
  uint32_t first_source = 0;                // where to begin: differs between targets, to spread them over the sources
};

// `box` of needs[need], from sources[source].entries[entry]. strided_copy() of the two entries' boxes gives the bytes.
struct Pull {
  uint32_t need = 0;
  uint32_t source = 0;
  uint32_t entry = 0;
  Box box;
  bool operator==(const Pull&) const = default;
};

// Sorted by source, entry and place in it. std::nullopt if a needed element is not available at that version, if the
// same tensor has another shape or dtype elsewhere, if needs overlap, or if an entry is not part of its tensor: `why`
// (if not null) then lists all of this, up to a limit.
std::optional<std::vector<Pull>> plan_reshard(const std::vector<ShardEntry>& needs,
                                              const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                              std::string* why = nullptr);

// Pulls `owed` (from a plan for the same needs and sources) from other sources: those whose index is not in `lost`.
// `loads`: bytes that each source still has to give besides (empty: none), to keep the shares even.
std::optional<std::vector<Pull>> replan_reshard(const std::vector<Pull>& owed, const std::vector<uint32_t>& lost,
                                                const std::vector<uint64_t>& loads,
                                                const std::vector<ShardEntry>& needs,
                                                const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                                std::string* why = nullptr);

// The newest version at which `needs` are completely available. std::nullopt if there is none; `why` then says what the
// newest ones lack.
std::optional<Version> newest_whole_version(const std::vector<ShardEntry>& needs,
                                            const std::vector<ShardSource>& sources, std::string* why = nullptr);

}  // namespace keepstep::brain
