#include "agent/shard_vaults.h"

#include <algorithm>
#include <utility>

namespace keepstep::agent {

StatusOr<int> ShardVaults::of_size(brain::Rank rank, uint64_t data_bytes, uint64_t text_room) {
  const auto fits = [&](const Vault& each) {
    // What is asked for is twice what is needed.
    return each.rank == rank && each.data_bytes == data_bytes && each.view().text_room() >= text_room / 2;
  };
  if (const auto found = std::find_if(vaults_.rbegin(), vaults_.rend(), fits); found != vaults_.rend()) {
    found->used = true;
    return found->memory.fd();
  }
  const auto same_rank = [&](const Vault& each) { return each.rank == rank; };
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
  vaults_.push_back({rank, data_bytes, *std::move(memory)});
  return vaults_.back().memory.fd();
}

StatusOr<int> ShardVaults::holding(brain::Rank rank, brain::Version version) const {
  for (const Vault& each : vaults_) {
    if (each.rank == rank && each.view().has(version)) {
      each.used = true;
      return each.memory.fd();
    }
  }
  return absl::NotFoundError(absl::StrFormat("no copy of the shard of rank %d at version %d is here", rank, version));
}

std::vector<brain::ShardCopy> ShardVaults::copies() const {
  std::vector<brain::ShardCopy> copies;
  for (const Vault& each : vaults_) {
    for (const brain::Version version : each.view().versions()) {
      copies.push_back({each.rank, version});
    }
  }
  std::sort(copies.begin(), copies.end());
  return copies;
}

std::vector<brain::Rank> ShardVaults::ranks_at(brain::Version version) const {
  std::vector<brain::Rank> ranks;
  for (const brain::ShardCopy& copy : copies()) {
    if (copy.version == version) {
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

void ShardVaults::drop_unused() {
  std::erase_if(vaults_, [](const Vault& each) { return !std::exchange(each.used, false); });
}

uint64_t ShardVaults::bytes() const {
  uint64_t bytes = 0;
  for (const Vault& each : vaults_) {
    bytes += each.memory.size();
  }
  return bytes;
}

}  // namespace keepstep::agent
