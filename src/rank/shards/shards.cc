#include "rank/shards/shards.h"

#include <cstdio>
#include <utility>

#include "rank/shards/shard_handover.h"

namespace keepstep::rank {

using comm::Rank;

StatusOr<Shards::Found> Shards::find(const Activation& activation, bool need) {
  Found found;
  KEEPSTEP_ASSIGN_OR_RETURN(found.copy, find_copy(activation, need));
  if (generation_.assignment.from.number != generation_.assignment.sharding) {
    KEEPSTEP_ASSIGN_OR_RETURN(found.parts, find_parts(activation, need && !found.copy.has_value()));
  }
  return found;
}

StatusOr<std::optional<std::string>> Shards::find_copy(const Activation& activation, bool need) {
  if (generation_.across()) {
    KEEPSTEP_RETURN_IF_ERROR(bring_copies(activation, {activation.copies.begin(), activation.copies.end()}, need));
  }
  if (!need) {
    return std::optional<std::string>();
  }
  const brain::Version version = activation.version;
  StatusOr<state::ShardVault> vault = memory_.holding(generation_.self(), version);
  if (absl::IsAborted(vault.status()) || absl::IsCancelled(vault.status())) {
    return vault.status();
  }
  if (!vault.ok()) {
    return std::optional<std::string>();
  }
  StatusOr<std::string> text = vault->text(version);
  KEEPSTEP_RETURN_IF_ERROR(memory_.keep_if_sound(*vault, version, text.status()));
  return std::optional(*std::move(text));
}

Status Shards::bring_copies(const Activation& activation, std::set<Rank> here, bool need) {
  const brain::Version version = activation.version;
  const Rank self = generation_.self();
  KEEPSTEP_ASSIGN_OR_RETURN(const CopyTable table, agree(version, here, need));
  std::vector<Rank> lost;
  for (Rank rank = 0; rank < generation_.world(); ++rank) {
    if (!table.needs(rank)) {
      continue;
    }
    const std::optional<Rank> from = table.giver(rank);
    if (!from.has_value()) {
      lost.push_back(rank);
    } else if (*from == self) {
      KEEPSTEP_RETURN_IF_ERROR(give_shard(generation_, memory_, rank, rank, version));
    } else if (rank == self) {
      KEEPSTEP_RETURN_IF_ERROR(take_shard(generation_, memory_, rank, *from, version));
    }
  }
  // All ranks know, and join in. If the sharding changed, the previous shards are used instead (shards_reshard.cc).
  if (!lost.empty() && generation_.assignment.from.number == generation_.assignment.sharding) {
    return lost_.rebuild(activation, lost, [&](Rank rank) { return table.giver(rank); });
  }
  return absl::OkStatus();
}

// All ranks get the same table, so they compute the same plan; repeated if a giver found its copy corrupt.
StatusOr<CopyTable> Shards::agree(brain::Version version, std::set<Rank>& here, bool need) {
  const Rank self = generation_.self();
  const Rank world = generation_.world();
  CopyTable table(world, world);
  std::set<Rank> sound;
  while (true) {
    const CopyTable before = std::exchange(table, CopyTable(world, world));
    if (need && !here.contains(self)) {
      table.set_needs(self);
    }
    if (generation_.speaks_for_node()) {
      for (const Rank rank : here) {
        table.set_gives(rank, self);
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(generation_.communicator->all_reduce(
        comm::kWorld, table.data(), table.size(), comm::DataType::kInt32, comm::ReduceOp::kMin)));
    bool none_moves = true;
    for (Rank rank = 0; rank < world; ++rank) {
      const std::optional<Rank> giver = table.needs(rank) ? table.giver(rank) : std::nullopt;
      none_moves = none_moves && !giver.has_value();
      if (giver == self && sound.insert(rank).second) {
        KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory_.holding(rank, version));
        if (!memory_.keep_if_sound(vault, version, vault.verify(version)).ok()) {
          here.erase(rank);
        }
      }
    }
    if (table == before || none_moves) {
      return table;
    }
  }
}

Status Shards::load(brain::Version version, const std::vector<state::Region>& regions) {
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory_.holding(generation_.self(), version));
  KEEPSTEP_ASSIGN_OR_RETURN(const state::TensorSpace space, state::TensorSpace::create(regions));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(copy_));
  return memory_.keep_if_sound(vault, version, vault.read(version, space, copy_));
}

// That step was decided, so every rank had its copies of the previous version.
void Shards::settle() {
  (void)agent_.send(messages::Settled{generation_.assignment.sharding});
  exchange_.reset();
  memory_.forget_others();
}

Status Shards::protect(brain::Version version, std::vector<state::Region> regions, std::string text,
                       const Protection& protection) {
  if (version > generation_.assignment.version && !std::exchange(settled_, true)) {
    settle();
  }
  protection_ = protection;
  if (copier_ == nullptr) {
    const ShardKeepers keepers(generation_.nodes, protection);
    if (keepers.shortfall() != shortfall_) {
      shortfall_ = keepers.shortfall();
      if (generation_.self() == 0 && !shortfall_.empty()) {
        std::fprintf(stderr, "keepstep: %s\n", shortfall_.c_str());
      }
    }
    copier_ = std::make_unique<ShardCopier>(
        *generation_.communicator, generation_.self(), keepers.of(generation_.self()),
        [this](Rank rank, uint64_t data_bytes, uint64_t text_room) { return memory_.of(rank, data_bytes, text_room); },
        [this](const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room) {
          return memory_.of(block, data_bytes, text_room);
        },
        copy_);
  }
  copier_->start(version, std::move(regions), std::move(text));
  return absl::OkStatus();
}

Status Shards::wait(brain::Version version) {
  if (copier_ == nullptr) {
    return absl::OkStatus();
  }
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);  // it computes nothing meanwhile
  const Status status = copier_->wait(version);
  return absl::IsAborted(status) ? absl::OkStatus() : generation_.passed_on(status);
}

ShardCopier::Counts Shards::counts() const { return copier_ == nullptr ? ShardCopier::Counts() : copier_->counts(); }

void Shards::finish() {
  if (copier_ != nullptr) {
    copier_->finish();
  }
}

void Shards::stop() {
  if (copier_ != nullptr) {
    copier_->stop();
  }
}

void Shards::leave_generation() {
  copier_.reset();
  exchange_.reset();
  settled_ = false;
  lost_.leave_generation();
  memory_.forget();
}

}  // namespace keepstep::rank
