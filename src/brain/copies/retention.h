// Which checkpoints of one tier are removed: by count, by age, and what saves that never ended left behind. Pure.
//
// Called per tier (memory, disk, S3), with what a listing of that tier shows and the rules for it. Four things hold
// whatever the rules say: the newest complete checkpoint stays, the one that was completed last stays (it is not the
// newest after a job went back to an older step), a pinned one stays, and so does one in use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// One checkpoint of a tier. Several entries of the same step are taken for one checkpoint, and for the better one:
// complete, pinned or in use if any of them is, and as young as the youngest.
struct StoredCheckpoint {
  Step step = 0;
  bool complete = true;  // it has a whole manifest; without one it does not exist for readers
  bool pinned = false;
  bool in_use = false;  // somebody that the caller knows of reads it, writes it, or still copies it to another tier
  Time age{};           // since anything in it was last written, by the tier's clock; below zero (clocks differ): 0
};

// 0 turns a rule off. With several rules a complete checkpoint goes as soon as one of them says so.
struct RetentionRules {
  uint32_t keep = 3;    // so many complete ones stay, those of the highest steps; pinned ones count like others
  Time max_age{0};      // complete ones older than this go
  Step keep_every = 0;  // complete ones whose step is a multiple of this stay for ever, besides those of `keep`
  // An incomplete one goes once nothing in it was written for this long: no save that is still running pauses that
  // long. Never off: below a minute it counts as a minute.
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

// What goes, the oldest step first: carried out in this order, a crash in between leaves the newer ones.
std::vector<Removal> to_remove(const std::vector<StoredCheckpoint>& stored, const RetentionRules& rules);

}  // namespace keepstep::brain
