// The memory of a node that shards and parity outlive their processes in, as a rank sees it: asked for by message,
// mapped once a generation. The agent owns it.
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
// answer came. RESOURCE_EXHAUSTED: the agent has no such memory; it says why.
class ShardMemory {
 public:
  ShardMemory(AgentLine& agent, RankGeneration& generation) : agent_(agent), generation_(generation) {}

  // Made, if it is not there.
  StatusOr<state::ShardVault> of(comm::Rank rank, uint64_t data_bytes, uint64_t text_room);
  StatusOr<state::ShardVault> of(const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room);
  // One in which `version` lies, in the division of the state that counts now or in another one.
  StatusOr<state::ShardVault> holding(comm::Rank rank, brain::Version version);
  StatusOr<state::ShardVault> holding(uint32_t sharding, comm::Rank rank, brain::Version version);
  StatusOr<state::ShardVault> holding(const brain::ParityBlock& block, brain::Version version);
  // `found` is what came of reading it. A corrupt copy is taken away, so that the next look finds another one.
  Status keep_if_sound(state::ShardVault& vault, brain::Version version, Status found);
  // A line for the journal.
  void note(const char* event, brain::Version version, const std::string& because);

  // A step was done in this division: what was mapped of others is not needed any more.
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
