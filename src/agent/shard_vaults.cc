#include "agent/shard_vaults.h"

#include <algorithm>
#include <utility>

namespace keepstep::agent {

StatusOr<int> ShardVaults::of_size(uint32_t sharding, brain::Rank rank, uint64_t data_bytes, uint64_t text_room) {
  const auto fits = [&](const Vault& each) {
    // What is asked for is twice what is needed.
    return each.sharding == sharding && each.rank == rank && each.data_bytes == data_bytes &&
           each.view().text_room() >= text_room / 2;
  };
  if (const auto found = std::find_if(vaults_.rbegin(), vaults_.rend(), fits); found != vaults_.rend()) {
    found->unused = 0;
    return found->memory.fd();
  }
  const auto same_rank = [&](const Vault& each) { return each.sharding == sharding && each.rank == rank; };
  if (std::count_if(vaults_.begin(), vaults_.end(), same_rank) > 1) {
    vaults_.erase(std::find_if(vaults_.begin(), vaults_.end(), same_rank));
  }
  StatusOr<SharedMemory> memory = SharedMemory::create("keepstep-shard-" + std::to_string(rank),
                                                       state::ShardVault::memory_bytes(data_bytes, text_room));
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat("copies of the shard of rank %d (two versions of %d bytes): %s",
                                                        rank, data_bytes, memory.status().message()));
  }
  state::ShardVault::initialize(memory->data(), rank, data_bytes, text_room);
  vaults_.push_back({sharding, rank, data_bytes, *std::move(memory)});
  return vaults_.back().memory.fd();
}

StatusOr<int> ShardVaults::holding(uint32_t sharding, brain::Rank rank, brain::Version version) const {
  for (const Vault& each : vaults_) {
    if (each.sharding == sharding && each.rank == rank && each.view().has(version)) {
      each.unused = 0;
      return each.memory.fd();
    }
  }
  return absl::NotFoundError(absl::StrFormat("no copy of the shard of rank %d at version %d is here", rank, version));
}

std::vector<brain::ShardCopy> ShardVaults::copies() const {
  std::vector<brain::ShardCopy> copies;
  for (const Vault& each : vaults_) {
    for (const brain::Version version : each.view().versions()) {
      copies.push_back({each.rank, version, each.sharding});
    }
  }
  std::sort(copies.begin(), copies.end());
  return copies;
}

std::vector<brain::Rank> ShardVaults::ranks_at(uint32_t sharding, brain::Version version) const {
  std::vector<brain::Rank> ranks;
  for (const brain::ShardCopy& copy : copies()) {
    if (copy.version == version && copy.sharding == sharding) {
      ranks.push_back(copy.rank);
    }
  }
  return ranks;
}

void ShardVaults::drop_beyond(brain::Version version) {
  for (const Vault& each : vaults_) {
    each.view().drop_beyond(version);
  }
}

void ShardVaults::drop_before(uint32_t sharding) {
  std::erase_if(vaults_, [&](const Vault& each) { return each.sharding < sharding; });
}

void ShardVaults::drop_unused() {
  std::erase_if(vaults_, [](const Vault& each) { return ++each.unused > 3; });
}

uint64_t ShardVaults::bytes() const {
  uint64_t bytes = 0;
  for (const Vault& each : vaults_) {
    bytes += each.memory.size();
  }
  return bytes;
}

}  // namespace keepstep::agent
