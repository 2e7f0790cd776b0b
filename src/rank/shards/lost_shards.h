// Rebuilds shards that no node holds any more from their groups' other blocks (parity) when a generation forms. All
// ranks compute the same plan and carry it out in the same order, one lost shard at a time. Main thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/status.h"
#include "brain/copies/parity_rebuild.h"
#include "rank/link/rank_generation.h"
#include "rank/shards/shard_memory.h"

namespace keepstep::rank {

class LostShards {
 public:
  LostShards(RankGeneration& generation, ShardMemory& memory) : generation_(generation), memory_(memory) {}

  // All ranks call it. `lost`: the ranks whose shards are lost; a shard with too few blocks left stays lost.
  // `giver_of`: which rank can give a rank's shard, if it is left. Statuses as for RankGeneration::exchange.
  Status rebuild(const Activation& activation, const std::vector<comm::Rank>& lost,
                 const std::function<std::optional<comm::Rank>(comm::Rank)>& giver_of);
  void leave_generation() { incoming_.clear(); }  // after the communicator

 private:
  StatusOr<std::vector<std::vector<uint32_t>>> gather_words(const std::vector<uint32_t>& mine);
  StatusOr<std::map<brain::ParityBlock, comm::Rank>> share_parity(const std::vector<brain::ParityBlock>& here,
                                                                  const std::vector<comm::Rank>& lost);
  StatusOr<std::vector<uint32_t>> take_corrupt_away(const std::map<comm::Rank, brain::Rebuild>& plans,
                                                    brain::Version version, std::vector<brain::ParityBlock>& here);
  StatusOr<state::ShardVault> block_of(const brain::Rebuild& plan, uint32_t block, brain::Version version);
  Status give_blocks(const brain::Rebuild& plan, comm::Rank to, brain::Version version);
  StatusOr<std::string> parity_text(const brain::Rebuild& plan, std::optional<state::ShardVault>& here,
                                    brain::Version version);
  Status rebuild_own(const brain::Rebuild& plan, brain::Version version);

  RankGeneration& generation_;
  ShardMemory& memory_;
  std::vector<std::vector<std::byte>> incoming_;  // write targets of abandoned receives
};

}  // namespace keepstep::rank
