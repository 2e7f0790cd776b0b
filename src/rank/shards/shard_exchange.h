// Sharded state that was divided among other ranks: each rank takes what it needs now from the shards of before, which
// lie in memory of nodes (state/vault/shard_vault.h). Who takes what is planned by brain/reshard/reshard_plan.h.
//
// All ranks of the world call find(), texts() and fill(), in this order; those that need nothing serve the others. Two
// ranks serve a shard: the lowest and the highest whose node has it, and who verified it. What they have on a rank's
// own node it reads itself; the rest comes as messages of the world group, in pieces with an XXH3 each, while this rank
// serves others from a thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"
#include "comm/communicator.h"
#include "rank/shards/copy_table.h"
#include "rank/shards/shard_line.h"
#include "rank/shards/word_gather.h"
#include "state/vault/shard_manifest.h"
#include "state/vault/shard_vault.h"

namespace keepstep::rank {

class ShardExchange {
 public:
  // What lies on this node of a shard of before. Any thread; the vault lives as long as this.
  using VaultOf = std::function<StatusOr<state::ShardVault>(comm::Rank shard)>;

  // `nodes`: by rank of this world. `shards`: ranks of the world of before, whose state at `version`
  // is wanted. Must outlive `comm`: after an error operations of it may stay behind.
  ShardExchange(comm::Communicator& comm, comm::Rank self, std::vector<uint32_t> nodes, comm::Rank shards,
                brain::Version version, VaultOf vault_of);

  // `here`: shards of which this node has a copy, the same on all its ranks. `need`: whether this rank takes anything.
  // Copies are verified, each by one rank of its node. False, on all ranks alike: a shard is nowhere.
  StatusOr<bool> find(const std::vector<comm::Rank>& here, bool need);
  // By shard, what was written with it; empty without need.
  StatusOr<std::vector<std::string>> texts();
  // Puts `needs` into `target`, one after the other without gaps, as in a manifest. `shards`: what each shard consists
  // of. FAILED_PRECONDITION: something of `needs` is nowhere, or has another shape or dtype there; all of it is named.
  // Then, and after every other error, the others must be interrupted.
  Status fill(const std::vector<state::ShardManifest>& shards, const state::ShardManifest& needs,
              std::span<std::byte> target);

  uint64_t bytes_from_elsewhere() const { return bytes_from_elsewhere_; }

 private:
  struct Ask;
  struct Asked;
  Status plan(const std::vector<state::ShardManifest>& shards, const state::ShardManifest& needs,
              std::span<std::byte> target, std::vector<std::vector<Ask>>* asks);
  Status swap_requests(const std::vector<std::vector<Ask>>& asks);
  Status serve(comm::Rank to);
  StatusOr<std::vector<Asked>> asked_by(comm::Rank to) const;
  Status take(comm::Rank from, const std::vector<Ask>& asks, std::span<std::byte> target);
  std::vector<comm::Rank> ranks_of(uint32_t node) const;

  comm::Communicator& comm_;
  const comm::Rank self_;
  const std::vector<uint32_t> nodes_;
  const comm::Rank shards_;
  const brain::Version version_;
  const VaultOf vault_of_;
  const comm::Rank world_;
  bool need_ = false;
  std::atomic<bool> stop_{false};
  ShardLine line_{comm_, stop_};
  uint64_t bytes_from_elsewhere_ = 0;
  // What operations that stay behind would write to, or read.
  CopyTable table_;  // who gives a shard reads it for other nodes
  WordGather gather_{comm_, world_, [this](comm::OpId op) { return line_.end(op); }};
  std::vector<std::string> requests_;  // of ours, by server
  std::vector<std::string> orders_;    // of others, by rank
  std::vector<std::string> texts_;
  uint64_t text_bytes_ = 0;
  std::vector<std::byte> sending_[2];
  std::vector<std::byte> receiving_[2];
};

}  // namespace keepstep::rank
