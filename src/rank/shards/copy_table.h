// What all ranks say together of the copies of shards when a generation forms: by rank, whether it needs its shard, and
// the lowest rank that can give it. One all_reduce (the minimum) makes the table of all out of those of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "comm/communicator.h"

namespace keepstep::rank {

class CopyTable {
 public:
  explicit CopyTable(comm::Rank world) : words_(size_t{2} * world, kNone) {}

  // Of one rank, before the all_reduce; a shard of a rank beyond the world is left out.
  void set_needs(comm::Rank rank) { words_[2 * rank] = 0; }
  void set_gives(comm::Rank shard, comm::Rank giver) {
    if (size_t{2} * shard < words_.size()) {
      words_[2 * shard + 1] = static_cast<int32_t>(giver);
    }
  }
  int32_t* data() { return words_.data(); }
  size_t size() const { return words_.size(); }  // int32

  bool needs(comm::Rank rank) const { return words_[2 * rank] == 0; }
  std::optional<comm::Rank> giver(comm::Rank shard) const {
    const int32_t giver = words_[2 * shard + 1];
    return giver == kNone ? std::nullopt : std::optional(static_cast<comm::Rank>(giver));
  }
  bool operator==(const CopyTable&) const = default;

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> words_;
};

}  // namespace keepstep::rank
