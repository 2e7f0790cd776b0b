#include "rank/shards/shard_keepers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "brain/copies/copy_placement.h"

namespace keepstep::rank {

using brain::Rank;

ShardKeepers::ShardKeepers(const std::vector<uint32_t>& nodes, Protection wanted) {
  const auto there_are = static_cast<uint32_t>(std::set<uint32_t>(nodes.begin(), nodes.end()).size());
  if (there_are < 2) {
    return;
  }
  std::vector<brain::Seat> seats;
  seats.reserve(nodes.size());
  for (const uint32_t node : nodes) {
    seats.push_back({node, node});
  }
  if (wanted.parity > 0) {
    std::string why;
    parity_ = brain::place_parity(seats, wanted.data, wanted.parity, &why);
    if (parity_.has_value()) {
      return;
    }
    if (there_are > wanted.parity + 1) {  // groups of at least two: a group of one is a copy
      wanted.data = there_are - wanted.parity;
      parity_ = brain::place_parity(seats, wanted.data, wanted.parity);
    }
    if (parity_.has_value()) {
      shortfall_ = absl::StrCat(why, ". Taken: parity=", wanted.data, "+", wanted.parity);
      return;
    }
    wanted.copies = std::min(wanted.parity + 1, there_are);
    shortfall_ = absl::StrCat(why, ". Taken: copies=", wanted.copies);
  }
  const uint32_t copies = std::min(wanted.copies, there_are);
  if (copies < 2) {
    return;
  }
  if (auto placed = brain::place_copies(seats, copies)) {
    keepers_ = std::move(placed->keepers);
  }
}

ShardDuties ShardKeepers::of(Rank rank) const {
  ShardDuties duties;
  for (Rank other = 0; other < keepers_.size(); ++other) {
    if (other == rank) {
      duties.keepers = keepers_[other];
    } else if (std::find(keepers_[other].begin(), keepers_[other].end(), rank) != keepers_[other].end()) {
      duties.kept.push_back(other);
    }
  }
  if (parity_.has_value()) {
    duties.parity_keepers = parity_->groups.at(parity_->group_of.at(rank)).keepers;
    for (const brain::ParityGroup& group : parity_->groups) {
      for (uint32_t row = 0; row < group.keepers.size(); ++row) {
        if (group.keepers[row] == rank) {
          duties.parity_kept.push_back({group.members, row});
        }
      }
    }
  }
  return duties;
}

}  // namespace keepstep::rank
