// Parity of shards, made while their ranks compute the next step: members of a group send the chunks of their shards,
// and a rank on another node codes them into a parity block as they arrive, and keeps the block
// (state/vault/parity_vault.h).
//
// All members are at the same version, and all chunks with one number have arrived before the next ones are coded:
// nobody holds another rank's whole shard. A member that dies halfway leaves the previous version untouched, and the
// current one incomplete.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "brain/copies/parity_rebuild.h"
#include "rank/shards/shard_line.h"
#include "state/vault/parity_vault.h"

namespace keepstep::rank {

// Like VaultOf (shard_copier.h), for a parity block.
using ParityVaultOf =
    std::function<StatusOr<state::ShardVault>(const brain::ParityBlock&, uint64_t data_bytes, uint64_t text_room)>;

// Keeps one block. Must outlive the communicator: a receive may be left behind.
class ParityKeeper {
 public:
  ParityKeeper(ShardLine line, brain::ParityBlock block, ParityVaultOf vault_of);
  // Runs until the members have no more versions, the line stops, or a link breaks.
  void run();

 private:
  static constexpr size_t kAhead = 2;  // chunks requested from one member at a time
  Status take(bool* over);
  Status take_chunks(state::ParityMaker& maker);
  Status answer(ShardAnswer answer);
  bool has(const state::ShardVault& vault) const;  // the version that the heads announce

  ShardLine line_;
  const brain::ParityBlock block_;
  const ParityVaultOf vault_of_;
  const state::ReedSolomon code_;
  std::vector<ShardHead> heads_;  // by member
  ShardAnswer answer_ = ShardAnswer::kSend;
  std::vector<std::vector<std::byte>> chunks_;  // kAhead for each member
};

// A member's side. Its lifetime is as above.
class ParityGiver {
 public:
  ParityGiver(ShardLine line, comm::Rank self, std::vector<comm::Rank> keepers);
  // Gives `version` of this rank's vault to all keepers. ABORTED, UNAVAILABLE: as for ShardLine; RESOURCE_EXHAUSTED: a
  // keeper has no memory for it; DATA_LOSS: it repeatedly arrives corrupted.
  Status give(state::ShardVault& vault, brain::Version version);
  // No more versions follow.
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
