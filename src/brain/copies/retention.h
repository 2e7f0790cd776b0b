// Which checkpoints of one tier are removed: by count, by age, and leftovers of saves that never finished. Pure.
//
// Called per tier (memory, disk, S3), with a listing of that tier and its rules. Four kinds stay whatever the rules
// say: the newest complete checkpoint, the one that was completed last (not the newest if the job went back to an older
// step), a pinned one, and one in use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// One checkpoint of a tier. Several entries of the same step are treated as one checkpoint, with the best of each:
// complete, pinned or in use if any of them is, and as young as the youngest.
struct StoredCheckpoint {
  Step step = 0;
  bool complete = true;  // it has a whole manifest; without one it does not exist for readers
  bool pinned = false;
  bool in_use = false;  // somebody the caller knows of reads it, writes it, or still copies it to another tier
  Time age{};           // since anything in it was last written, by the tier's clock; negative (clocks differ): 0
};

// 0 turns a rule off. With several rules, a complete checkpoint is removed as soon as one of them says so.
struct RetentionRules {
  uint32_t keep = 3;    // complete ones that stay, those of the highest steps; pinned ones count too
  Time max_age{0};      // complete ones older than this are removed
  Step keep_every = 0;  // complete ones whose step is a multiple of this stay forever, in addition to those of `keep`
  // An incomplete one is removed once nothing in it was written for this long: no running save pauses that long. Never
  // off: anything below a minute means a minute.
  Time save_limit = std::chrono::hours(1);
};

enum class RemovedFor : uint8_t { kCount = 0, kAge = 1, kIncomplete = 2 };
const char* name(RemovedFor reason);  // "count", "age", "incomplete"

struct Removal {
  Step step = 0;
  RemovedFor reason = RemovedFor::kCount;
  std::string because;  // for the journal: "3 newer complete ones are kept"
  bool operator==(const Removal&) const = default;
};

// What to remove, oldest step first: if a crash interrupts the removals in this order, the newer ones are left.
std::vector<Removal> to_remove(const std::vector<StoredCheckpoint>& stored, const RetentionRules& rules);

}  // namespace keepstep::brain
