#include "agent/memory/shard_vaults.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace keepstep::agent {
namespace {

// Sizes above this, which other ranks report, are not believed.
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 46;
constexpr uint64_t kMaxTextRoom = uint64_t{1} << 32;

}  // namespace

std::string ShardVaults::Need::label() const {
  const auto* const block = std::get_if<brain::ParityBlock>(&of.what);
  return block != nullptr ? "keepstep-shard-parity-" + std::to_string(block->members.front())
                          : "keepstep-shard-" + std::to_string(std::get<brain::Rank>(of.what));
}

StatusOr<std::optional<int>> ShardVaults::find(const Need& need) const {
  if (need.data_bytes > kMaxDataBytes || need.text_room > kMaxTextRoom) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %d bytes, and room for %d bytes of text, are more than any shard has", name(need.of),
                        need.data_bytes, need.text_room));
  }
  const auto fits = [&](const Vault& each) {
    // Requests ask for twice the text room they need.
    return each.of == need.of && each.data_bytes == need.data_bytes && each.view().text_room() >= need.text_room / 2;
  };
  const auto found = std::find_if(vaults_.rbegin(), vaults_.rend(), fits);
  if (found == vaults_.rend()) {
    return std::optional<int>();
  }
  found->unused = 0;
  return std::optional(found->memory.fd());
}

StatusOr<int> ShardVaults::add(const Need& need, StatusOr<SharedMemory> made) {
  if (!made.ok()) {
    return absl::ResourceExhaustedError(absl::StrFormat("copies of %s (two versions of %d bytes): %s", name(need.of),
                                                        need.data_bytes, made.status().message()));
  }
  const auto same = [&](const Vault& each) { return each.of == need.of; };
  if (std::count_if(vaults_.begin(), vaults_.end(), same) > 1) {
    drop(same, 1);
  }
  std::visit(
      [&](const auto& what) { state::ShardVault::initialize(made->data(), what, need.data_bytes, need.text_room); },
      need.of.what);
  vaults_.push_back({need.of, need.data_bytes, *std::move(made), next_number_++});
  return vaults_.back().memory.fd();
}

StatusOr<int> ShardVaults::holding(const Of& of, brain::Version version) const {
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
  drop([&](const Vault& each) { return each.of.sharding < sharding; });
}

void ShardVaults::drop_unused() {
  drop([](const Vault& each) { return ++each.unused > 3; });
}

void ShardVaults::drop(const std::function<bool(const Vault&)>& goes, size_t most) {
  for (auto vault = vaults_.begin(); vault != vaults_.end() && most > 0;) {
    if (!goes(*vault)) {
      ++vault;
      continue;
    }
    if (discard_) {
      discard_(std::move(vault->memory));
    }
    vault = vaults_.erase(vault);
    --most;
  }
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
