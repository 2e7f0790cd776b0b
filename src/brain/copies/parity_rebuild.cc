#include "brain/copies/parity_rebuild.h"

#include <algorithm>
#include <set>

#include "brain/copies/parity_placement.h"

namespace keepstep::brain {

bool is_possible(const ParityBlock& block) {
  return !block.members.empty() && block.members.size() < kMaxBlocksOfGroup &&
         block.row < kMaxBlocksOfGroup - block.members.size() &&
         std::set<Rank>(block.members.begin(), block.members.end()).size() == block.members.size();
}

std::optional<Rebuild> plan_rebuild(Rank lost, const std::map<Rank, Rank>& shards,
                                    const std::map<ParityBlock, Rank>& parity) {
  for (auto first = parity.begin(); first != parity.end();) {
    const std::vector<Rank>& members = first->first.members;
    // Rows of one group are adjacent.
    const auto end =
        std::find_if(first, parity.end(), [&](const auto& entry) { return entry.first.members != members; });
    if (std::find(members.begin(), members.end(), lost) != members.end()) {
      Rebuild found{members, {}};
      for (uint32_t block = 0; block < members.size(); ++block) {
        const auto shard = shards.find(members[block]);
        if (members[block] != lost && shard != shards.end()) {
          found.sources.push_back({block, shard->second});
        }
      }
      for (auto row = first; row != end && found.sources.size() < members.size(); ++row) {
        found.sources.push_back({static_cast<uint32_t>(members.size()) + row->first.row, row->second});
      }
      if (found.sources.size() == members.size()) {
        return found;
      }
    }
    first = end;
  }
  return std::nullopt;
}

}  // namespace keepstep::brain
