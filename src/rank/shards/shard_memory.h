// A rank's view of the node memory in which shards and parity outlive their processes: requested by message, mapped
// once per generation. The agent owns it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/copies/shard_copies.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "state/vault/shard_vault.h"

namespace keepstep::rank {

// Any thread. A vault lives as long as the generation. ABORTED, CANCELLED: the generation, or the job, ended before the
// answer came. RESOURCE_EXHAUSTED: the agent has no such memory; the message gives its reason.
class ShardMemory {
 public:
  ShardMemory(AgentLine& agent, RankGeneration& generation) : agent_(agent), generation_(generation) {}

  // Made if it does not exist.
  StatusOr<state::ShardVault> of(comm::Rank rank, uint64_t data_bytes, uint64_t text_room);
  StatusOr<state::ShardVault> of(const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room);
  // A vault that holds `version`, in the current sharding or in another one.
  StatusOr<state::ShardVault> holding(comm::Rank rank, brain::Version version);
  StatusOr<state::ShardVault> holding(uint32_t sharding, comm::Rank rank, brain::Version version);
  StatusOr<state::ShardVault> holding(const brain::ParityBlock& block, brain::Version version);
  // `found`: the result of reading the vault. A corrupt copy is discarded, so that the next search finds another one.
  Status keep_if_sound(state::ShardVault& vault, brain::Version version, Status found);
  // A line for the journal.
  void note(const char* event, brain::Version version, const std::string& because);

  // A step was committed in this sharding: mappings of others are no longer needed.
  void forget_others();
  void forget();

 private:
  StatusOr<state::ShardVault> ask(messages::VaultQuestion question);

  AgentLine& agent_;
  RankGeneration& generation_;
  std::mutex mutex_;
  struct Mapped {
    uint32_t sharding = 0;
    SharedMemory memory;
  };
  std::map<uint64_t, Mapped> mapped_;  // by inode
};

}  // namespace keepstep::rank
