// Who pulls which parts of which tensors from whom, where those who have them cut them otherwise than those who need
// them (docs/design/sharded.md). Pure.
//
// What one rank needs and what sources have (live peers, copies in memory, disk, S3) is said in the terms of DCP: boxes
// of named tensors. The plan pulls every element that is needed exactly once, from the nearest sources that have it;
// sources that are equally near share it evenly. brain/reshard/hydration_plan.h is the special case in which everybody
// has everything and the order of small chunks over the sources matters; here a source's share stays in one piece where
// it can, because one read of a disk or of S3 costs as much as many bytes.
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
  std::string dtype;            // "float32"; equal on both sides, nothing is converted
  uint32_t element_bytes = 0;   // at least 1
  std::vector<uint64_t> shape;  // of the whole tensor
  Box box;
  bool operator==(const ShardEntry&) const = default;
};

struct ShardSource {
  uint32_t distance = 0;  // the least ones are asked first; what the numbers stand for is the caller's
  Version version = 0;
  std::vector<ShardEntry> entries;
};

struct ReshardOptions {
  Version version = 0;                      // sources with another one are left out
  uint64_t least_stripe_bytes = 256 << 10;  // no share is cut smaller than that; at least 1
  uint32_t first_source = 0;                // who begins: differs between targets, so that not all begin at one source
};

// `box` of needs[need], out of sources[source].entries[entry]. strided_copy() of the two entries' boxes says which
// bytes.
struct Pull {
  uint32_t need = 0;
  uint32_t source = 0;
  uint32_t entry = 0;
  Box box;
  bool operator==(const Pull&) const = default;
};

// By source, entry and place in it. Nothing if a needed element is nowhere to be had at that version, if the same
// tensor has another shape or dtype elsewhere, if needs overlap or an entry is no part of its tensor: `why` (if not
// null) then names all of it, up to a limit.
std::optional<std::vector<Pull>> plan_reshard(const std::vector<ShardEntry>& needs,
                                              const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                              std::string* why = nullptr);

// `owed` (of a plan for the same needs and sources) pulled elsewhere: from sources that `lost` does not name by index.
// `loads`: bytes that each source still has to give otherwise (empty: none), so that the shares stay even.
std::optional<std::vector<Pull>> replan_reshard(const std::vector<Pull>& owed, const std::vector<uint32_t>& lost,
                                                const std::vector<uint64_t>& loads,
                                                const std::vector<ShardEntry>& needs,
                                                const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                                std::string* why = nullptr);

// The newest version at which `needs` are to be had whole. Nothing if there is none; `why` then says what the newest
// ones lack.
std::optional<Version> newest_whole_version(const std::vector<ShardEntry>& needs,
                                            const std::vector<ShardSource>& sources, std::string* why = nullptr);

}  // namespace keepstep::brain
