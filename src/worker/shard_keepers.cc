#include "worker/shard_keepers.h"

#include <algorithm>
#include <map>

namespace keepstep::worker {

using comm::Rank;

ShardKeepers::ShardKeepers(const std::vector<uint32_t>& nodes, uint32_t copies) {
  std::vector<uint32_t> order;  // of the nodes, by their first rank
  std::map<uint32_t, std::vector<Rank>> ranks;
  for (Rank rank = 0; rank < nodes.size(); ++rank) {
    if (!ranks.contains(nodes[rank])) {
      order.push_back(nodes[rank]);
    }
    ranks[nodes[rank]].push_back(rank);
  }
  if (order.size() < 2) {
    return;
  }
  keepers_.resize(nodes.size());
  const size_t elsewhere = std::min<size_t>(copies > 0 ? copies - 1 : 0, order.size() - 1);
  for (size_t node = 0; node < order.size(); ++node) {
    const std::vector<Rank>& here = ranks[order[node]];
    for (size_t next = 1; next <= elsewhere; ++next) {
      const std::vector<Rank>& there = ranks[order[(node + next) % order.size()]];
      for (size_t place = 0; place < here.size(); ++place) {
        keepers_[here[place]].push_back(there[place % there.size()]);
      }
    }
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
