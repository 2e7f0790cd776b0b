// For tests: vaults whose memory is made synchronously.
#pragma once

#include "agent/memory/shard_vaults.h"

namespace keepstep::agent {

struct TestVaults : ShardVaults {
  StatusOr<int> of_size(uint32_t sharding, std::variant<brain::Rank, brain::ParityBlock> what, uint64_t data_bytes,
                        uint64_t text_room) {
    const Need need{{sharding, std::move(what)}, data_bytes, text_room};
    KEEPSTEP_ASSIGN_OR_RETURN(const std::optional<int> found, find(need));
    return found.has_value() ? *found : add(need, SharedMemory::create(need.label(), need.memory_bytes()));
  }
};

}  // namespace keepstep::agent
