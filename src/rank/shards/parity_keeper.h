// Parity of shards, made while their ranks compute the next step: members of a group give their shards' chunks, a rank
// on another node codes them into a parity block as they come, and keeps that (state/vault/parity_vault.h).
//
// All members are at the same version, and all chunks of one number are there before the next are coded: nobody holds a
// whole shard of another's. A member that dies half way leaves the version before untouched, and this one not whole.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "brain/copies/parity_rebuild.h"
#include "rank/shards/shard_line.h"
#include "state/vault/parity_vault.h"

namespace keepstep::rank {

// As VaultOf (shard_replicas.h), for a parity block.
using ParityVaultOf =
    std::function<StatusOr<state::ShardVault>(const brain::ParityBlock&, uint64_t data_bytes, uint64_t text_room)>;

// Keeps one block. Must outlive the communicator: a receive may stay behind.
class ParityKeeper {
 public:
  ParityKeeper(ShardLine line, brain::ParityBlock block, ParityVaultOf vault_of);
  // Until the members have no more versions, the line stops, or a link breaks.
  void run();

 private:
  static constexpr size_t kAhead = 2;  // chunks of one member that are asked for at a time
  Status take(bool* over);
  Status take_chunks(state::ParityMaker& maker);
  Status answer(ShardAnswer answer);
  bool has(const state::ShardVault& vault) const;  // what the heads tell of

  ShardLine line_;
  const brain::ParityBlock block_;
  const ParityVaultOf vault_of_;
  const state::ReedSolomon code_;
  std::vector<ShardHead> heads_;  // by member
  ShardAnswer answer_ = ShardAnswer::kSend;
  std::vector<std::vector<std::byte>> chunks_;  // kAhead for each member
};

// What a member does. As long as above.
class ParityGiver {
 public:
  ParityGiver(ShardLine line, comm::Rank self, std::vector<comm::Rank> keepers);
  // `version` of our vault, to all keepers. ABORTED, UNAVAILABLE as ShardLine says; RESOURCE_EXHAUSTED: a keeper has no
  // memory for it; DATA_LOSS: it arrives broken again and again.
  Status give(state::ShardVault& vault, brain::Version version);
  // There will be no more.
  void finish();

 private:
  static constexpr size_t kAhead = 2;
  Status give_bytes(state::ShardVault& vault, brain::Version version, std::span<const size_t> to);

  ShardLine line_;
  const comm::Rank self_;
  const std::vector<comm::Rank> keepers_;
  ShardHead head_;
  std::vector<ShardAnswer> answers_;
};

}  // namespace keepstep::rank
