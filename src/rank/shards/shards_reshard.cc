// Sharded state that is divided among other ranks from now on (shard_exchange.h) because an elastic job changed its
// size.
#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "rank/shards/shard_handover.h"
#include "rank/shards/shards.h"
#include "state/vault/shard_manifest.h"

namespace keepstep::rank {

using comm::Rank;

StatusOr<std::vector<std::string>> Shards::find_parts(const Activation& activation, bool need) {
  const brain::Sharding from = generation_.assignment.from;
  std::vector<uint32_t> nodes = generation_.nodes;
  nodes.resize(generation_.world(), 0);  // all on one node
  exchange_ = std::make_unique<ShardExchange>(
      *generation_.communicator, generation_.self(), std::move(nodes), from.world, activation.version,
      [this, from, version = activation.version](Rank shard) { return memory_.holding(from.number, shard, version); });
  const StatusOr<bool> found = exchange_->find(activation.copies_from, need);
  KEEPSTEP_RETURN_IF_ERROR(generation_.passed_on(found.status()));
  if (!*found) {
    return std::vector<std::string>();
  }
  StatusOr<std::vector<std::string>> texts = exchange_->texts();
  KEEPSTEP_RETURN_IF_ERROR(generation_.passed_on(texts.status()));
  if (!need) {
    KEEPSTEP_RETURN_IF_ERROR(generation_.passed_on(exchange_->fill({}, {}, {})));  // serves the others
    return std::vector<std::string>();
  }
  return texts;
}

Status Shards::reshard(brain::Version version, const std::vector<std::string>& shards, const std::string& needs,
                       const std::string& text) {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);
  std::vector<state::ShardManifest> manifests;
  for (const std::string& shard : shards) {
    KEEPSTEP_ASSIGN_OR_RETURN(manifests.emplace_back(), state::parse_shard_manifest(shard));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const state::ShardManifest mine, state::parse_shard_manifest(needs));
  const uint64_t bytes = state::shard_starts(mine.shards).back();
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault,
                            memory_.of(generation_.self(), bytes, shard_text_room(text.size())));
  vault.begin(version);
  KEEPSTEP_RETURN_IF_ERROR(generation_.passed_on(exchange_->fill(manifests, mine, vault.data(version))));
  KEEPSTEP_RETURN_IF_ERROR(vault.put_text(version, text));
  vault.finish({version, text.size(), state::vault_checksum(vault.data(version)), checksum(text.data(), text.size())});
  return absl::OkStatus();
}

// All ranks compute the same pairs, in the order of the shards.
Status Shards::leave(brain::Version version) {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<uint32_t> stay, agent_.await_pause());
  std::vector<Rank> heirs;
  const auto stays = [&](Rank rank) { return std::binary_search(stay.begin(), stay.end(), generation_.nodes[rank]); };
  for (Rank rank = 0; rank < generation_.nodes.size(); ++rank) {
    if (stays(rank)) {
      heirs.push_back(rank);
    }
  }
  if (heirs.empty()) {
    return absl::OkStatus();  // one node, or no node leaves
  }
  const ShardKeepers keepers(generation_.nodes, protection_);
  size_t given = 0;
  for (Rank rank = 0; rank < generation_.nodes.size(); ++rank) {
    const std::vector<Rank> kept_by = keepers.of(rank).keepers;
    if (stays(rank) || std::any_of(kept_by.begin(), kept_by.end(), stays)) {
      continue;
    }
    const Rank heir = heirs[given++ % heirs.size()];
    if (rank == generation_.self()) {
      KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory_.holding(rank, version));
      KEEPSTEP_RETURN_IF_ERROR(memory_.keep_if_sound(vault, version, vault.verify(version)));
      KEEPSTEP_RETURN_IF_ERROR(give_shard(generation_, memory_, rank, heir, version));
    } else if (heir == generation_.self()) {
      KEEPSTEP_RETURN_IF_ERROR(take_shard(generation_, memory_, rank, rank, version));
    }
  }
  return absl::OkStatus();
}

}  // namespace keepstep::rank
