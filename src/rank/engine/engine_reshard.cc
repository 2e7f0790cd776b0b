// The engine's part in sharded state that is divided among other ranks from now on (shard_exchange.h): an elastic job
// changed its size.
#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "rank/engine/engine.h"
#include "rank/shards/shard_keepers.h"
#include "state/vault/shard_manifest.h"

namespace keepstep::worker {

using comm::Rank;

// An exchange that failed because of a link, or of a peer: the interruption says what it was.
Status Engine::passed_on(const Status& status) {
  return absl::IsUnavailable(status) ? await_interruption(status) : status;
}

StatusOr<std::optional<std::vector<std::string>>> Engine::find_shards_of_before(const Activation& activation,
                                                                                bool need) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  const brain::Sharding from = assignment_.from;
  std::vector<uint32_t> nodes = nodes_;
  nodes.resize(assignment_.world, 0);  // all on one
  shard_exchange_ = std::make_unique<ShardExchange>(
      *communicator_, assignment_.rank, std::move(nodes), from.world, activation.version,
      [this, from, version = activation.version](Rank shard) { return vault_holding(from.number, shard, version); });
  const StatusOr<bool> found = shard_exchange_->find(activation.copies_from, need);
  KEEPSTEP_RETURN_IF_ERROR(passed_on(found.status()));
  if (!*found) {
    return std::optional<std::vector<std::string>>();
  }
  StatusOr<std::vector<std::string>> texts = shard_exchange_->texts();
  KEEPSTEP_RETURN_IF_ERROR(passed_on(texts.status()));
  return std::optional(*std::move(texts));
}

Status Engine::reshard(brain::Version version, const std::vector<std::string>& shards, const std::string& needs,
                       const std::string& text) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  if (needs.empty()) {
    return passed_on(shard_exchange_->fill({}, {}, {}));
  }
  std::vector<state::ShardManifest> manifests;
  for (const std::string& shard : shards) {
    KEEPSTEP_ASSIGN_OR_RETURN(manifests.emplace_back(), state::parse_shard_manifest(shard));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const state::ShardManifest mine, state::parse_shard_manifest(needs));
  const uint64_t bytes = state::shard_starts(mine.shards).back();
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_of(assignment_.rank, bytes, shard_text_room(text.size())));
  vault.begin(version);
  KEEPSTEP_RETURN_IF_ERROR(passed_on(shard_exchange_->fill(manifests, mine, vault.data(version))));
  KEEPSTEP_RETURN_IF_ERROR(vault.put_text(version, text));
  vault.finish({version, text.size(), state::vault_checksum(vault.data(version)), checksum(text.data(), text.size())});
  return absl::OkStatus();
}

// All ranks come to the same pairs, in the order of the shards.
Status Engine::leave_shard(brain::Version version) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<uint32_t> stay, who_stays());
  std::vector<Rank> heirs;
  const auto stays = [&](Rank rank) { return std::binary_search(stay.begin(), stay.end(), nodes_[rank]); };
  for (Rank rank = 0; rank < nodes_.size(); ++rank) {
    if (stays(rank)) {
      heirs.push_back(rank);
    }
  }
  if (heirs.empty()) {
    return absl::OkStatus();  // one node, or nobody is to leave
  }
  const ShardKeepers keepers(nodes_, protection_);
  size_t given = 0;
  for (Rank rank = 0; rank < nodes_.size(); ++rank) {
    const std::vector<Rank> kept_by = keepers.of(rank).keepers;
    if (stays(rank) || std::any_of(kept_by.begin(), kept_by.end(), stays)) {
      continue;
    }
    const Rank heir = heirs[given++ % heirs.size()];
    if (rank == assignment_.rank) {
      KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_holding(rank, version));
      KEEPSTEP_RETURN_IF_ERROR(keep_if_sound(vault, version, vault.verify(version)));
      KEEPSTEP_RETURN_IF_ERROR(hand_over(rank, heir, version));
    } else if (heir == assignment_.rank) {
      KEEPSTEP_RETURN_IF_ERROR(take_over(rank, rank, version));
    }
  }
  return absl::OkStatus();
}

}  // namespace keepstep::worker
