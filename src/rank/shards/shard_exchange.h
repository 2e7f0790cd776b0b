// Sharded state that was divided among other ranks: each rank takes the parts it needs now from the previous shards,
// which are in the nodes' memory (state/vault/shard_vault.h). brain/reshard/reshard_plan.h plans which rank takes what.
//
// All ranks of the world call find(), texts() and fill(), in this order; ranks that need nothing serve the others. Two
// ranks serve each shard: the lowest and the highest whose node has it, after verifying it. A rank reads its own node's
// shards directly; the rest arrives as messages of the world group, in pieces with an XXH3 each, while a thread of this
// rank serves others.
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
  // This node's copy of a previous shard. Any thread; the vault lives as long as this object.
  using VaultOf = std::function<StatusOr<state::ShardVault>(comm::Rank shard)>;

  // `nodes`: by rank of this world. `shards`: the size of the previous world, whose state at `version` is wanted. Must
  // outlive `comm`: after an error, operations may be left behind.
  ShardExchange(comm::Communicator& comm, comm::Rank self, std::vector<uint32_t> nodes, comm::Rank shards,
                brain::Version version, VaultOf vault_of);

  // `here`: the shards of which this node has a copy, the same on all its ranks. `need`: whether this rank takes
  // anything. Each copy is verified by one rank of its node. False, on all ranks alike: no copy of some shard exists.
  StatusOr<bool> find(const std::vector<comm::Rank>& here, bool need);
  // By shard, the text saved with it; empty without need.
  StatusOr<std::vector<std::string>> texts();
  // Puts `needs` into `target`, in order and without gaps, as in a manifest. `shards`: the contents of each shard.
  // FAILED_PRECONDITION: parts of `needs` are in no shard, or have another shape or dtype there; the message names all
  // of them. After this and any other error, the other ranks must be interrupted.
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
  // Read or written by operations that are left behind.
  CopyTable table_;  // ranks that give a shard read it for other nodes
  WordGather gather_{comm_, world_, [this](comm::OpId op) { return line_.end(op); }};
  std::vector<std::string> requests_;  // this rank's, by server
  std::vector<std::string> orders_;    // other ranks', by rank
  std::vector<std::string> texts_;
  uint64_t text_bytes_ = 0;
  std::vector<std::byte> sending_[2];
  std::vector<std::byte> receiving_[2];
};

}  // namespace keepstep::rank
