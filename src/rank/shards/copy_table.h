// A table of shard copies that all ranks share when a generation forms: which ranks need one, and for each shard the
// lowest and the highest rank that can give it. One all_reduce (minimum) merges the ranks' tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "brain/types.h"

namespace keepstep::rank {

class CopyTable {
 public:
  // `shards`: the number of shards, one for each rank of the world that made them.
  CopyTable(brain::Rank world, brain::Rank shards) : world_(world), words_(world + size_t{2} * shards, kNone) {}

  // For one rank, before the all_reduce; a shard of a rank beyond `shards` is left out.
  void set_needs(brain::Rank rank) { words_[rank] = 0; }
  void set_gives(brain::Rank shard, brain::Rank giver) {
    if (at(shard) < words_.size()) {
      words_[at(shard)] = static_cast<int32_t>(giver);
      words_[at(shard) + 1] = -static_cast<int32_t>(giver);  // the lowest of these is the highest rank
    }
  }
  int32_t* data() { return words_.data(); }
  size_t size() const { return words_.size(); }  // int32

  bool needs(brain::Rank rank) const { return words_[rank] == 0; }
  // The lowest rank that can give this shard.
  std::optional<brain::Rank> giver(brain::Rank shard) const {
    const int32_t lowest = words_[at(shard)];
    return lowest == kNone ? std::nullopt : std::optional(static_cast<brain::Rank>(lowest));
  }
  // That one, and the highest if it is a different one.
  std::vector<brain::Rank> givers(brain::Rank shard) const {
    const std::optional<brain::Rank> lowest = giver(shard);
    if (!lowest) {
      return {};
    }
    const auto highest = static_cast<brain::Rank>(-words_[at(shard) + 1]);
    return highest == *lowest ? std::vector{*lowest} : std::vector{*lowest, highest};
  }
  bool operator==(const CopyTable&) const = default;

 private:
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  size_t at(brain::Rank shard) const { return world_ + size_t{2} * shard; }

  brain::Rank world_;
  std::vector<int32_t> words_;
};

}  // namespace keepstep::rank
