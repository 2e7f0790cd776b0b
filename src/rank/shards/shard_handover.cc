#include "rank/shards/shard_handover.h"

#include "rank/link/reserved_tags.h"
#include "rank/shards/shard_line.h"

namespace keepstep::rank {

using comm::Rank;

Status give_shard(RankGeneration& generation, ShardMemory& memory, Rank shard, Rank to, brain::Version version) {
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory.holding(shard, version));
  const ShardHead head{*vault.seal_of(version), vault.data_bytes(), vault.text_room()};
  const auto send = [&](const void* data, size_t bytes) {
    return generation.exchange(generation.communicator->send(comm::kWorld, data, bytes, to, kTagShardHandover));
  };
  KEEPSTEP_RETURN_IF_ERROR(send(&head, sizeof(head)));
  KEEPSTEP_RETURN_IF_ERROR(send(vault.text_slot(version).data(), head.seal.text_bytes));
  return send(vault.data(version).data(), vault.data_bytes());
}

Status take_shard(RankGeneration& generation, ShardMemory& memory, Rank shard, Rank from, brain::Version version) {
  const auto receive = [&](void* data, size_t bytes) {
    return generation.exchange(generation.communicator->receive(comm::kWorld, data, bytes, from, kTagShardHandover));
  };
  ShardHead head;
  KEEPSTEP_RETURN_IF_ERROR(receive(&head, sizeof(head)));
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory.of(shard, head.data_bytes, head.text_room));
  if (head.seal.version != version || head.seal.text_bytes > vault.text_room()) {
    return absl::InternalError(absl::StrFormat("rank %d gave version %d of a shard where version %d was due", from,
                                               head.seal.version, version));
  }
  vault.begin(version);
  KEEPSTEP_RETURN_IF_ERROR(receive(vault.text_slot(version).data(), head.seal.text_bytes));
  KEEPSTEP_RETURN_IF_ERROR(receive(vault.data(version).data(), vault.data_bytes()));
  vault.finish(head.seal);
  return memory.keep_if_sound(vault, version, vault.verify(version));
}

}  // namespace keepstep::rank
