#include "agent/shard_vaults.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace keepstep::agent {
namespace {

// What another rank says is not believed beyond this.
constexpr uint64_t kMostDataBytes = uint64_t{1} << 46;
constexpr uint64_t kMostTextRoom = uint64_t{1} << 32;

}  // namespace

StatusOr<int> ShardVaults::of_size(uint32_t sharding, brain::Rank rank, uint64_t data_bytes, uint64_t text_room) {
  return make({sharding, rank}, data_bytes, text_room);
}

StatusOr<int> ShardVaults::of_size(uint32_t sharding, const brain::ParityBlock& block, uint64_t data_bytes,
                                   uint64_t text_room) {
  return make({sharding, block}, data_bytes, text_room);
}

StatusOr<int> ShardVaults::holding(uint32_t sharding, brain::Rank rank, brain::Version version) const {
  return find({sharding, rank}, version);
}

StatusOr<int> ShardVaults::holding(uint32_t sharding, const brain::ParityBlock& block, brain::Version version) const {
  return find({sharding, block}, version);
}

StatusOr<int> ShardVaults::make(const Of& of, uint64_t data_bytes, uint64_t text_room) {
  if (data_bytes > kMostDataBytes || text_room > kMostTextRoom) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: %d bytes, and room for %d bytes of text, are more than any shard has", name(of), data_bytes, text_room));
  }
  const auto fits = [&](const Vault& each) {
    // What is asked for is twice what is needed.
    return each.of == of && each.data_bytes == data_bytes && each.view().text_room() >= text_room / 2;
  };
  if (const auto found = std::find_if(vaults_.rbegin(), vaults_.rend(), fits); found != vaults_.rend()) {
    found->unused = 0;
    return found->memory.fd();
  }
  const auto same = [&](const Vault& each) { return each.of == of; };
  if (std::count_if(vaults_.begin(), vaults_.end(), same) > 1) {
    vaults_.erase(std::find_if(vaults_.begin(), vaults_.end(), same));
  }
  const auto* const block = std::get_if<brain::ParityBlock>(&of.what);
  StatusOr<SharedMemory> memory =
      SharedMemory::create(block != nullptr ? "keepstep-shard-parity-" + std::to_string(block->members.front())
                                            : "keepstep-shard-" + std::to_string(std::get<brain::Rank>(of.what)),
                           state::ShardVault::memory_bytes(data_bytes, text_room));
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat("copies of %s (two versions of %d bytes): %s", name(of),
                                                        data_bytes, memory.status().message()));
  }
  std::visit([&](const auto& what) { state::ShardVault::initialize(memory->data(), what, data_bytes, text_room); },
             of.what);
  vaults_.push_back({of, data_bytes, *std::move(memory), next_number_++});
  return vaults_.back().memory.fd();
}

StatusOr<int> ShardVaults::find(const Of& of, brain::Version version) const {
  for (const Vault& each : vaults_) {
    if (each.of == of && each.view().has(version)) {
      each.unused = 0;
      return each.memory.fd();
    }
  }
  return absl::NotFoundError(absl::StrFormat("no copy of %s at version %d is here", name(of), version));
}

std::string ShardVaults::name(const Of& of) {
  const auto* const block = std::get_if<brain::ParityBlock>(&of.what);
  return block != nullptr
             ? absl::StrCat("parity ", block->row, " of the shards of ranks ", absl::StrJoin(block->members, ", "))
             : absl::StrCat("the shard of rank ", std::get<brain::Rank>(of.what));
}

std::vector<const ShardVaults::Vault*> ShardVaults::current() const {
  std::vector<const Vault*> current;
  for (const Vault& each : vaults_) {
    const std::vector<brain::Version> mine = each.view().versions();
    const bool outgrown = !mine.empty() && std::any_of(vaults_.begin(), vaults_.end(), [&](const Vault& other) {
      const std::vector<brain::Version> theirs =
          other.of == each.of && &other != &each ? other.view().versions() : std::vector<brain::Version>{};
      return theirs.size() > 1 && theirs.front() > mine.back();
    });
    if (!outgrown) {
      current.push_back(&each);
    }
  }
  return current;
}

std::vector<brain::ShardCopy> ShardVaults::copies() const {
  std::vector<brain::ShardCopy> copies;
  for (const Vault* const each : current()) {
    if (const auto* const rank = std::get_if<brain::Rank>(&each->of.what)) {
      for (const brain::Version version : each->view().versions()) {
        copies.push_back({*rank, version, each->of.sharding});
      }
    }
  }
  std::sort(copies.begin(), copies.end());
  return copies;
}

std::vector<brain::ParityCopy> ShardVaults::parity() const {
  std::vector<brain::ParityCopy> parity;
  for (const Vault* const each : current()) {
    if (const auto* const block = std::get_if<brain::ParityBlock>(&each->of.what)) {
      for (const brain::Version version : each->view().versions()) {
        parity.push_back({*block, version});
      }
    }
  }
  std::sort(parity.begin(), parity.end());
  return parity;
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

std::vector<brain::ParityBlock> ShardVaults::parity_at(brain::Version version) const {
  std::vector<brain::ParityBlock> blocks;
  for (brain::ParityCopy& copy : parity()) {
    if (copy.version == version) {
      blocks.push_back(std::move(copy.block));
    }
  }
  return blocks;
}

void ShardVaults::drop_beyond(brain::Version version) {
  for (const Vault& each : vaults_) {
    each.view().drop_beyond(version);
  }
}

void ShardVaults::drop_before(uint32_t sharding) {
  std::erase_if(vaults_, [&](const Vault& each) { return each.of.sharding < sharding; });
}

void ShardVaults::drop_unused() {
  std::erase_if(vaults_, [](const Vault& each) { return ++each.unused > 3; });
}

std::vector<ShardVaults::Held> ShardVaults::held() const {
  std::vector<Held> held;
  for (const Vault* const each : current()) {
    held.push_back({each->number, each->of.sharding, each->of.what, each->data_bytes, &each->memory, each->view()});
  }
  return held;
}

uint64_t ShardVaults::bytes() const {
  uint64_t bytes = 0;
  for (const Vault& each : vaults_) {
    bytes += each.memory.size();
  }
  return bytes;
}

}  // namespace keepstep::agent
