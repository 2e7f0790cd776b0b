// The memory in which shards of ranks outlive their processes (state/shard_vault.h): those of this node, and copies of
// others, and parity blocks of theirs. The agent makes it and hands it out; who may write where the ranks agree on.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/shard_copies.h"
#include "state/shard_vault.h"

namespace keepstep::agent {

class ShardVaults {
 public:
  // The descriptor of the memory for `rank` of a division (brain::Sharding, by its number), or for a block of it that
  // is_possible(), made if there is none of this size. It stays this object's. When a shard changed its size, the
  // memory of before stays until the next change. RESOURCE_EXHAUSTED: no memory, and how much.
  StatusOr<int> of_size(uint32_t sharding, brain::Rank rank, uint64_t data_bytes, uint64_t text_room);
  StatusOr<int> of_size(uint32_t sharding, const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room);
  // The same for what holds `version`. NOT_FOUND.
  StatusOr<int> holding(uint32_t sharding, brain::Rank rank, brain::Version version) const;
  StatusOr<int> holding(uint32_t sharding, const brain::ParityBlock& block, brain::Version version) const;

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
  struct Of {
    uint32_t sharding = 0;
    std::variant<brain::Rank, brain::ParityBlock> what;
    bool operator==(const Of&) const = default;
  };
  struct Vault {
    Of of;
    uint64_t data_bytes = 0;
    SharedMemory memory;
    uint64_t number = 0;
    mutable int unused = 0;  // for so many generations
    state::ShardVault view() const { return *state::ShardVault::open(memory.data(), memory.size()); }
  };
  StatusOr<int> make(const Of& of, uint64_t data_bytes, uint64_t text_room);
  StatusOr<int> find(const Of& of, brain::Version version) const;
  std::vector<const Vault*> current() const;
  static std::string name(const Of& of);

  std::deque<Vault> vaults_;  // the newest last
  uint64_t next_number_ = 1;
};

}  // namespace keepstep::agent
