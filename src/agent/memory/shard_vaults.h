// The memory in which shards outlive their ranks' processes (state/vault/shard_vault.h): this node's own shards, copies
// of shards of other nodes, and parity blocks of those. The agent makes it (vault_maker.h) and hands it out; the ranks
// agree who may write where.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/copies/shard_copies.h"
#include "state/vault/shard_vault.h"

namespace keepstep::agent {

class ShardVaults {
 public:
  // A rank in a division of the state (a brain::Sharding, by its number), or a parity block of it that is_possible().
  struct Of {
    uint32_t sharding = 0;
    std::variant<brain::Rank, brain::ParityBlock> what;
    bool operator==(const Of&) const = default;
  };
  // Memory for two versions, each with `data_bytes` of data and half of `text_room` of text.
  struct Need {
    Of of;
    uint64_t data_bytes = 0;
    uint64_t text_room = 0;
    std::string label() const;
    uint64_t memory_bytes() const { return state::ShardVault::memory_bytes(data_bytes, text_room); }
  };
  // Returns the descriptor of memory of that size, which this object keeps; std::nullopt if it has yet to be made.
  // RESOURCE_EXHAUSTED: larger than any shard.
  StatusOr<std::optional<int>> find(const Need& need) const;
  // Takes the result of SharedMemory::create() for label() and memory_bytes(), and returns its descriptor. When a shard
  // changes its size, the previous memory stays until the next change. RESOURCE_EXHAUSTED: create() failed; the message
  // says for how much memory.
  StatusOr<int> add(const Need& need, StatusOr<SharedMemory> made);
  // The descriptor of the memory that holds `version`. NOT_FOUND if there is none.
  StatusOr<int> holding(const Of& of, brain::Version version) const;
  // Sets what returns dropped memory to the kernel, which takes time. The default returns it at once.
  void discard_with(std::function<void(SharedMemory)> discard) { discard_ = std::move(discard); }

  // All complete copies and parity blocks here; ranks_at() and parity_at() return those at `version`. Memory of an
  // outgrown size counts until the memory of the new size holds two versions: the older of these was complete
  // everywhere before the newer one.
  std::vector<brain::ShardCopy> copies() const;
  std::vector<brain::ParityCopy> parity() const;
  std::vector<brain::Rank> ranks_at(uint32_t sharding, brain::Version version) const;
  std::vector<brain::ParityBlock> parity_at(brain::Version version) const;
  // Applies to all vaults, when a generation begins: later versions did not happen.
  void drop_beyond(brain::Version version);
  // Drops divisions before `sharding`: a step was done in that one, so every shard of it has its copies.
  void drop_before(uint32_t sharding);
  // Drops whatever nobody asked for in three generations (three calls): it is kept elsewhere now.
  void drop_unused();
  uint64_t bytes() const;

  // Describes each vault, for checks. `memory` and `view` are valid until this object changes.
  struct Held {
    uint64_t number = 0;  // later vaults have higher numbers; never reused
    uint32_t sharding = 0;
    std::variant<brain::Rank, brain::ParityBlock> what;
    uint64_t data_bytes = 0;  // of each version
    const SharedMemory* memory = nullptr;
    state::ShardVault view;
  };
  std::vector<Held> held() const;  // by number, without outgrown memory

 private:
  struct Vault {
    Of of;
    uint64_t data_bytes = 0;
    SharedMemory memory;
    uint64_t number = 0;
    mutable int unused = 0;  // for this many generations
    state::ShardVault view() const { return *state::ShardVault::open(memory.data(), memory.size()); }
  };
  // Drops those for which `goes` is true.
  void drop(const std::function<bool(const Vault&)>& goes, size_t most = SIZE_MAX);
  std::vector<const Vault*> current() const;
  static std::string name(const Of& of);

  std::deque<Vault> vaults_;  // newest last
  uint64_t next_number_ = 1;
  std::function<void(SharedMemory)> discard_;
};

}  // namespace keepstep::agent
