// Moves a shard from one rank to another, as messages of the world group. Both ranks call it, in the same order. Main
// thread.
#pragma once

#include "rank/link/rank_generation.h"
#include "rank/shards/shard_memory.h"

namespace keepstep::rank {

// The receiver has memory for the shard of rank `shard`, and the giver knows that its copy is sound. Statuses as for
// RankGeneration::exchange.
Status give_shard(RankGeneration& generation, ShardMemory& memory, comm::Rank shard, comm::Rank to,
                  brain::Version version);
// DATA_LOSS: the received copy is corrupt, and was discarded.
Status take_shard(RankGeneration& generation, ShardMemory& memory, comm::Rank shard, comm::Rank from,
                  brain::Version version);

}  // namespace keepstep::rank
