// Sharded state: each rank's shard, its copies and parity in memory of nodes, and how it comes back from there. Instead
// of peers that hold the same (state_transfer.h). Main thread; statuses ABORTED and UNAVAILABLE as of
// RankGeneration::exchange.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "rank/shards/copy_table.h"
#include "rank/shards/lost_shards.h"
#include "rank/shards/shard_exchange.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_memory.h"
#include "rank/shards/shard_replicas.h"
#include "state/device/cuda_copy.h"

namespace keepstep::rank {

class Shards {
 public:
  Shards(AgentLine& agent, RankGeneration& generation, state::CudaCopy& copy)
      : agent_(agent), generation_(generation), copy_(copy), memory_(agent, generation), lost_(generation, memory_) {}

  // ---- in ready() and until form(), by all ranks ----
  // What is left of a rank's shard at `activation.version`.
  struct Found {
    std::optional<std::string> copy;  // what was written with it
    std::vector<std::string> parts;  // by shard of the division before, what was written with it; empty: one is nowhere
  };
  // A rank that has none (`need`) finds a copy of its own, or gets one from another node, or makes it of its group's
  // other blocks. Where none is left and the state was divided otherwise before, it finds those shards, and reshard()
  // follows. A rank without need serves the others until they have theirs.
  StatusOr<Found> find(const Activation& activation, bool need);
  // `shards`: what each of these consists of, `needs`: what this rank holds from now on (state/vault/shard_manifest.h),
  // `text`: goes with it. Then this rank's shard of `version` is in memory, for load().
  // FAILED_PRECONDITION: it does not fit, and what.
  Status reshard(brain::Version version, const std::vector<std::string>& shards, const std::string& needs,
                 const std::string& text);
  // After that, with need: fills `regions`, which are what was protected then.
  Status load(brain::Version version, const std::vector<state::Region>& regions);

  // ---- in the generation ----
  // After form(), and after each update: copies `regions` at `version` in the background, to this node and as
  // `protection` says to others, or into parity there (as far as there are so many). They must not change before
  // wait(version).
  Status protect(brain::Version version, std::vector<state::Region> regions, std::string text,
                 const Protection& protection);
  // Before the vote on version + 1. OK when interrupted: the vote finds the seal.
  Status wait(brain::Version version);
  ShardReplicas::Counts counts() const;
  // After wait(version), with all ranks, before a pause: ranks on nodes that leave give their shard to others.
  Status leave(brain::Version version);
  void finish();  // the job is over on all ranks

  void stop();              // before the communicator goes
  void leave_generation();  // after it

 private:
  StatusOr<std::optional<std::string>> find_copy(const Activation& activation, bool need);
  // Empty without need, or, on all ranks alike, because a shard is nowhere.
  StatusOr<std::vector<std::string>> find_parts(const Activation& activation, bool need);
  Status bring_copies(const Activation& activation, std::set<comm::Rank> here, bool need);
  StatusOr<CopyTable> agree(brain::Version version, std::set<comm::Rank>& here, bool need);
  void settle();

  AgentLine& agent_;
  RankGeneration& generation_;
  state::CudaCopy& copy_;
  ShardMemory memory_;
  LostShards lost_;
  std::unique_ptr<ShardReplicas> replicas_;
  std::unique_ptr<ShardExchange> exchange_;
  Protection protection_;
  bool settled_ = false;   // the agent was told
  std::string shortfall_;  // of protection, as it was told last
};

}  // namespace keepstep::rank
