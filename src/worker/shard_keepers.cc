#include "worker/shard_keepers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "brain/copy_placement.h"

namespace keepstep::worker {

using comm::Rank;

ShardKeepers::ShardKeepers(const std::vector<uint32_t>& nodes, uint32_t copies) {
  const auto there_are = static_cast<uint32_t>(std::set<uint32_t>(nodes.begin(), nodes.end()).size());
  const uint32_t wanted = std::min(copies, there_are);
  if (wanted < 2) {
    return;
  }
  std::vector<brain::Seat> seats;
  seats.reserve(nodes.size());
  for (const uint32_t node : nodes) {
    seats.push_back({node, node});
  }
  if (auto placed = brain::place_copies(seats, wanted)) {
    keepers_ = std::move(placed->keepers);
  }
}

const std::vector<Rank>& ShardKeepers::of(Rank rank) const { return keepers_.empty() ? none_ : keepers_.at(rank); }

std::vector<Rank> ShardKeepers::kept_by(Rank keeper) const {
  std::vector<Rank> kept;
  for (Rank rank = 0; rank < keepers_.size(); ++rank) {
    if (std::find(keepers_[rank].begin(), keepers_[rank].end(), keeper) != keepers_[rank].end()) {
      kept.push_back(rank);
    }
  }
  return kept;
}

}  // namespace keepstep::worker
