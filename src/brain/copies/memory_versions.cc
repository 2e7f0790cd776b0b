#include "brain/copies/memory_versions.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace keepstep::brain {
namespace {

bool belongs(const Holding& holding, Rank world) {
  if (const auto* const rank = std::get_if<Rank>(&holding.what)) {
    return *rank < world;
  }
  const std::vector<Rank>& members = std::get<ParityBlock>(holding.what).members;
  return std::all_of(members.begin(), members.end(), [&](Rank rank) { return rank < world; });
}

MemoryVersion weigh(Version version, const Sharding& sharding, const std::vector<const Holding*>& holdings) {
  MemoryVersion found{.version = version, .sharding = sharding};
  std::vector<std::set<NodeId>> copies(sharding.world);  // by rank
  std::vector<uint32_t> blocks(sharding.world, 0);
  std::map<Rank, Rank> shards;  // each is given by "itself": which node has it does not matter here
  std::map<ParityBlock, Rank> rows;
  std::set<NodeId> nodes;
  for (const Holding* const each : holdings) {
    nodes.insert(each->node);
    found.held_bytes += each->bytes;
    found.age_ns = std::max(found.age_ns, each->age_ns);
    if (const auto* const rank = std::get_if<Rank>(&each->what)) {
      found.bytes += copies[*rank].empty() ? each->bytes : 0;
      copies[*rank].insert(each->node);
      shards.emplace(*rank, *rank);
    } else if (const auto& block = std::get<ParityBlock>(each->what); rows.emplace(block, 0).second) {
      for (const Rank member : block.members) {
        ++blocks[member];
      }
    }
  }
  found.nodes.assign(nodes.begin(), nodes.end());
  for (Rank rank = 0; rank < sharding.world; ++rank) {
    const auto here = static_cast<uint32_t>(copies[rank].size());
    found.copies = rank == 0 ? here : std::min(found.copies, here);
    found.parity = rank == 0 ? blocks[rank] : std::min(found.parity, blocks[rank]);
    if (here == 0 && !plan_rebuild(rank, shards, rows).has_value()) {
      found.lost.push_back(rank);
    }
  }
  return found;
}

}  // namespace

std::vector<MemoryVersion> versions_in_memory(std::span<const Holding> holdings, std::span<const Sharding> shardings) {
  std::map<std::pair<Version, uint32_t>, std::vector<const Holding*>> by_version;
  std::map<uint32_t, Sharding> known;
  for (const Sharding& sharding : shardings) {
    known.emplace(sharding.number, sharding);
  }
  for (const Holding& holding : holdings) {
    const auto sharding = known.find(holding.sharding);
    if (sharding != known.end() && belongs(holding, sharding->second.world)) {
      by_version[{holding.version, holding.sharding}].push_back(&holding);
    }
  }
  std::vector<MemoryVersion> versions;
  for (auto each = by_version.rbegin(); each != by_version.rend(); ++each) {
    versions.push_back(weigh(each->first.first, known.at(each->first.second), each->second));
  }
  return versions;
}

}  // namespace keepstep::brain
