// The memory in which shards of ranks outlive their processes (state/vault/shard_vault.h): those of this node, and
// copies of others, and parity blocks of theirs. The agent makes it (vault_maker.h) and hands it out; who may write
// where the ranks agree on.
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
  // A rank of a division of the state (brain::Sharding, by its number), or a block of it that is_possible().
  struct Of {
    uint32_t sharding = 0;
    std::variant<brain::Rank, brain::ParityBlock> what;
    bool operator==(const Of&) const = default;
  };
  // Memory for so much data of each of two versions, and half of `text_room` of text.
  struct Need {
    Of of;
    uint64_t data_bytes = 0;
    uint64_t text_room = 0;
    std::string label() const;
    uint64_t memory_bytes() const { return state::ShardVault::memory_bytes(data_bytes, text_room); }
  };
  // The descriptor of memory of that size; it stays this object's. Nothing: it has to be made. RESOURCE_EXHAUSTED: more
  // than any shard has.
  StatusOr<std::optional<int>> find(const Need& need) const;
  // Takes what SharedMemory::create() made of label() and memory_bytes(), and returns its descriptor. When a shard
  // changed its size, the memory of before stays until the next change. RESOURCE_EXHAUSTED: it made none; how much.
  StatusOr<int> add(const Need& need, StatusOr<SharedMemory> made);
  // The descriptor of what holds `version`. NOT_FOUND.
  StatusOr<int> holding(const Of& of, brain::Version version) const;
  // Who gives memory back to the kernel when it is dropped, which takes time; else it is done at once.
  void discard_with(std::function<void(SharedMemory)> discard) { discard_ = std::move(discard); }

  // Everything that is whole here, and whose of `version` in one division. Memory of a size that a shard outgrew counts
  // until that of its new size holds two versions: the older one of these was whole everywhere before the newer one.
  std::vector<brain::ShardCopy> copies() const;
  std::vector<brain::ParityCopy> parity() const;
  std::vector<brain::Rank> ranks_at(uint32_t sharding, brain::Version version) const;
  std::vector<brain::ParityBlock> parity_at(brain::Version version) const;
  // Of all vaults. When a generation begins: later versions did not happen.
  void drop_beyond(brain::Version version);
  // Divisions before `sharding`: a step was done in that one, so that every shard of it has its copies.
  void drop_before(uint32_t sharding);
  // Forgets whatever nobody asked for in three generations, that is, three calls: it is kept elsewhere now.
  void drop_unused();
  uint64_t bytes() const;

  // Each vault, for who looks at all of them. `memory` and `view` live until this object is changed.
  struct Held {
    uint64_t number = 0;  // later ones have higher numbers; none is given twice
    uint32_t sharding = 0;
    std::variant<brain::Rank, brain::ParityBlock> what;
    uint64_t data_bytes = 0;  // of each version
    const SharedMemory* memory = nullptr;
    state::ShardVault view;
  };
  std::vector<Held> held() const;  // by number; without what was outgrown

 private:
  struct Vault {
    Of of;
    uint64_t data_bytes = 0;
    SharedMemory memory;
    uint64_t number = 0;
    mutable int unused = 0;  // for so many generations
    state::ShardVault view() const { return *state::ShardVault::open(memory.data(), memory.size()); }
  };
  // Those that `goes` is true of.
  void drop(const std::function<bool(const Vault&)>& goes, size_t most = SIZE_MAX);
  std::vector<const Vault*> current() const;
  static std::string name(const Of& of);

  std::deque<Vault> vaults_;  // the newest last
  uint64_t next_number_ = 1;
  std::function<void(SharedMemory)> discard_;
};

}  // namespace keepstep::agent
