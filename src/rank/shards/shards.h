// Sharded state: each rank's shard, its copies and parity in the nodes' memory, and its recovery from there. Used
// instead of peers with identical state (state_transfer.h). Main thread; ABORTED and UNAVAILABLE as for
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
#include "rank/shards/shard_copier.h"
#include "rank/shards/shard_exchange.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_memory.h"
#include "state/device/cuda_copy.h"

namespace keepstep::rank {

class Shards {
 public:
  Shards(AgentLine& agent, RankGeneration& generation, state::CudaCopy& copy)
      : agent_(agent), generation_(generation), copy_(copy), memory_(agent, generation), lost_(generation, memory_) {}

  // ---- between ready() and form(), by all ranks ----
  // What is left of a rank's shard at `activation.version`.
  struct Found {
    std::optional<std::string> copy;  // the text saved with it
    std::vector<std::string> parts;   // by previous shard, the text saved with it; empty: no copy of one is left
  };
  // A rank without its shard (`need`) finds a copy, gets one from another node, or rebuilds the shard from its group's
  // other blocks. If no copy is left and the state was divided differently before, it finds the previous shards, and
  // reshard() follows. A rank without need serves the others until they have their shards.
  StatusOr<Found> find(const Activation& activation, bool need);
  // `shards`: the contents of each previous shard; `needs`: what this rank holds from now on
  // (state/vault/shard_manifest.h); `text`: saved with it. This rank's shard of `version` is then in memory, for
  // load(). FAILED_PRECONDITION: the parts that do not fit, named.
  Status reshard(brain::Version version, const std::vector<std::string>& shards, const std::string& needs,
                 const std::string& text);
  // After that, with need: fills `regions`, which are those that were protected then.
  Status load(brain::Version version, const std::vector<state::Region>& regions);

  // ---- in the generation ----
  // After form(), and after each update: copies `regions` at `version` in the background, to this node and to others as
  // `protection` asks, or into parity there (as far as there are enough nodes). The regions must not change before
  // wait(version).
  Status protect(brain::Version version, std::vector<state::Region> regions, std::string text,
                 const Protection& protection);
  // Before the vote on version + 1. OK when interrupted: the vote will find the seal.
  Status wait(brain::Version version);
  ShardCopier::Counts counts() const;
  // After wait(version), with all ranks, before a pause: ranks on nodes that leave hand their shard over to others.
  Status leave(brain::Version version);
  void finish();  // the job is over on all ranks

  void stop();              // before the communicator ends
  void leave_generation();  // after it ended

 private:
  StatusOr<std::optional<std::string>> find_copy(const Activation& activation, bool need);
  // Empty without need, or, on all ranks alike, because no copy of some shard exists.
  StatusOr<std::vector<std::string>> find_parts(const Activation& activation, bool need);
  Status bring_copies(const Activation& activation, std::set<comm::Rank> here, bool need);
  StatusOr<CopyTable> agree(brain::Version version, std::set<comm::Rank>& here, bool need);
  void settle();

  AgentLine& agent_;
  RankGeneration& generation_;
  state::CudaCopy& copy_;
  ShardMemory memory_;
  LostShards lost_;
  std::unique_ptr<ShardCopier> copier_;
  std::unique_ptr<ShardExchange> exchange_;
  Protection protection_;
  bool settled_ = false;   // the agent has been told
  std::string shortfall_;  // of the protection, as last reported
};

}  // namespace keepstep::rank
