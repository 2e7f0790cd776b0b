// A shard goes from one rank to another, as messages of the world group. Both call it, in the same order. Main thread.
#pragma once

#include "rank/link/rank_generation.h"
#include "rank/shards/shard_memory.h"

namespace keepstep::rank {

// To one that has memory for the shard of rank `shard`; the giver knows its copy to be sound. Statuses as of
// RankGeneration::exchange.
Status give_shard(RankGeneration& generation, ShardMemory& memory, comm::Rank shard, comm::Rank to,
                  brain::Version version);
// DATA_LOSS: what came is corrupt, and was taken away.
Status take_shard(RankGeneration& generation, ShardMemory& memory, comm::Rank shard, comm::Rank from,
                  brain::Version version);

}  // namespace keepstep::rank
