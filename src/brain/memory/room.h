// Which checkpoints in memory make room for a new one, and which one is drained next to a disk or S3. Pure.
//
// The memory server asks when it is full, and removes one version after the other, in the order that it gets, until
// there is room. Retention (brain/copies/retention.h) is the writers' own: it removes versions whether or not there is
// room for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

enum class Drained : uint8_t {
  kDone,     // it is on disk or in S3 too
  kNone,     // its destination has no drain
  kWaiting,  // it will be drained
};

// A step of a destination in memory.
struct ServedVersion {
  std::string destination;
  Step step = 0;
  bool complete = false;  // it has a manifest
  bool pinned = false;
  bool in_use = false;  // somebody has read it lately, or drains it
  Drained drained = Drained::kNone;
  Time age{};  // since anything in it was last written; negative: 0
};

// An incomplete version may be removed when nothing was written to it for this long: its writers are dead.
inline constexpr Time kSaveLimit = std::chrono::hours(1);

// Indexes of the versions that may be removed to make room, in this order: what dead writers left, then what a disk has
// too, then what has no drain, then what waits for its drain; of each kind the oldest first. Never: of a destination
// the complete version with the highest step and the one that was completed last, pinned ones, and those in use.
std::vector<size_t> to_make_room(const std::vector<ServedVersion>& versions);

// Index of the version to drain next, of one destination: the newest complete one that waits, unless as many as `keep`
// (0: any number) newer ones are complete, because the drain would remove it at once. std::nullopt: none.
std::optional<size_t> to_drain(const std::vector<ServedVersion>& versions, uint64_t keep);

}  // namespace keepstep::brain
