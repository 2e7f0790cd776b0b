#include "rank/shards/shards.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "rank/shards/shard_handover.h"

namespace keepstep::rank {

using comm::Rank;

namespace {

// Who can give the shard of a rank.
std::optional<Rank> giver_of(const std::vector<ShardNotice>& notices, Rank rank) {
  const auto giver =
      std::find_if(notices.begin(), notices.end(), [&](const ShardNotice& each) { return each.holds(rank); });
  return giver == notices.end() ? std::nullopt : std::optional(static_cast<Rank>(giver - notices.begin()));
}

}  // namespace

StatusOr<std::optional<std::string>> Shards::find(const Activation& activation, bool need) {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);
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
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<ShardNotice> notices, agree(version, here, need));
  std::vector<Rank> lost;
  for (Rank rank = 0; rank < generation_.world(); ++rank) {
    if (!notices[rank].needs()) {
      continue;
    }
    const std::optional<Rank> from = giver_of(notices, rank);
    if (!from.has_value()) {
      lost.push_back(rank);
    } else if (*from == self) {
      KEEPSTEP_RETURN_IF_ERROR(give_shard(generation_, memory_, rank, rank, version));
    } else if (rank == self) {
      KEEPSTEP_RETURN_IF_ERROR(take_shard(generation_, memory_, rank, *from, version));
    }
  }
  // All know, and join in. Where the division changed, the previous shards are used instead (shards_reshard.cc).
  if (!lost.empty() && generation_.assignment.from.number == generation_.assignment.sharding) {
    return lost_.rebuild(activation, lost, [&](Rank rank) { return giver_of(notices, rank); });
  }
  return absl::OkStatus();
}

// What all know then, so that they come to the same plan: again, where who is to give a copy found it corrupt.
StatusOr<std::vector<ShardNotice>> Shards::agree(brain::Version version, std::set<Rank>& here, bool need) {
  const Rank self = generation_.self();
  std::vector<ShardNotice> notices;
  std::set<Rank> sound;
  while (true) {
    const std::vector<ShardNotice> before = std::exchange(notices, {});
    KEEPSTEP_ASSIGN_OR_RETURN(notices, share_copies(here, need));
    bool none_moves = true;
    for (Rank rank = 0; rank < generation_.world(); ++rank) {
      const std::optional<Rank> giver = notices[rank].needs() ? giver_of(notices, rank) : std::nullopt;
      none_moves = none_moves && !giver.has_value();
      if (giver == self && sound.insert(rank).second) {
        KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory_.holding(rank, version));
        if (!memory_.keep_if_sound(vault, version, vault.verify(version)).ok()) {
          here.erase(rank);
        }
      }
    }
    if (notices == before || none_moves) {
      return notices;
    }
  }
}

// What every rank says, by rank.
StatusOr<std::vector<ShardNotice>> Shards::share_copies(const std::set<Rank>& here, bool need) {
  const auto world = static_cast<Rank>(generation_.world());
  std::vector<ShardNotice> notices(world, ShardNotice(world));
  ShardNotice mine(world);
  if (need && !here.contains(generation_.self())) {
    mine.set_need();
  }
  if (generation_.speaks_for_node()) {
    for (const Rank rank : here) {
      if (rank < world) {
        mine.set_holds(rank);
      }
    }
  }
  std::vector<void*> outputs;
  for (ShardNotice& notice : notices) {
    outputs.push_back(notice.data());
  }
  KEEPSTEP_RETURN_IF_ERROR(
      generation_.exchange(generation_.communicator->all_gather(comm::kWorld, mine.data(), outputs, mine.size())));
  return notices;
}

Status Shards::load(brain::Version version, const std::vector<state::Region>& regions) {
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, memory_.holding(generation_.self(), version));
  KEEPSTEP_ASSIGN_OR_RETURN(const state::TensorSpace space, state::TensorSpace::create(regions));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(copy_));
  return memory_.keep_if_sound(vault, version, vault.read(version, space, copy_));
}

// That step was decided, so every rank had its copies of the version before.
void Shards::settle() {
  (void)agent_.send(MessageType::kSettled, {{"sharding", generation_.assignment.sharding}});
  exchange_.reset();
  memory_.forget_others();
}

Status Shards::protect(brain::Version version, std::vector<state::Region> regions, std::string text,
                       const Protection& protection) {
  if (version > generation_.assignment.version && !std::exchange(settled_, true)) {
    settle();
  }
  protection_ = protection;
  if (replicas_ == nullptr) {
    const ShardKeepers keepers(generation_.nodes, protection);
    if (keepers.shortfall() != shortfall_) {
      shortfall_ = keepers.shortfall();
      if (generation_.self() == 0 && !shortfall_.empty()) {
        std::fprintf(stderr, "keepstep: %s\n", shortfall_.c_str());
      }
    }
    replicas_ = std::make_unique<ShardReplicas>(
        *generation_.communicator, generation_.self(), keepers.of(generation_.self()),
        [this](Rank rank, uint64_t data_bytes, uint64_t text_room) { return memory_.of(rank, data_bytes, text_room); },
        [this](const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room) {
          return memory_.of(block, data_bytes, text_room);
        },
        copy_);
  }
  replicas_->start(version, std::move(regions), std::move(text));
  return absl::OkStatus();
}

Status Shards::wait(brain::Version version) {
  if (replicas_ == nullptr) {
    return absl::OkStatus();
  }
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);  // it computes nothing meanwhile
  const Status status = replicas_->wait(version);
  return absl::IsAborted(status) ? absl::OkStatus() : generation_.passed_on(status);
}

ShardReplicas::Counts Shards::counts() const {
  return replicas_ == nullptr ? ShardReplicas::Counts() : replicas_->counts();
}

void Shards::finish() {
  if (replicas_ != nullptr) {
    replicas_->finish();
  }
}

void Shards::stop() {
  if (replicas_ != nullptr) {
    replicas_->stop();
  }
}

void Shards::leave_generation() {
  replicas_.reset();
  exchange_.reset();
  settled_ = false;
  lost_.leave_generation();
  memory_.forget();
}

}  // namespace keepstep::rank
