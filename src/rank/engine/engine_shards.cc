// The engine's part in sharded state: where copies lie, who gets one when a generation forms, and the copies that are
// made while it trains (shard_replicas.h). The memory is the agent's, asked for by message.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rank/engine/engine.h"
#include "rank/link/reserved_tags.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_line.h"

namespace keepstep::worker {

using comm::Outcome;
using comm::Rank;

// Asks the agent. Any thread; the view lives as long as the generation. ABORTED, CANCELLED: the generation, or the job,
// ended before the answer came.
StatusOr<state::ShardVault> Engine::vault(nlohmann::json body) {
  std::unique_lock lock(mutex_);
  const uint64_t id = next_request_++;
  const uint32_t sharding = body.at("sharding");
  vault_replies_[id] = VaultReply{};
  lock.unlock();
  body["id"] = id;
  const Status sent = send(MessageType::kVault, std::move(body));
  lock.lock();
  const Status waited =
      sent.ok() ? wait_in_generation(lock, [&] { return vault_replies_[id].answered || leaving_; }) : sent;
  VaultReply reply = std::move(vault_replies_[id]);
  vault_replies_.erase(id);
  lock.unlock();
  KEEPSTEP_RETURN_IF_ERROR(waited);
  if (!reply.answered) {
    return absl::CancelledError("this process leaves the job");
  }
  if (!reply.memory.valid()) {
    return absl::ResourceExhaustedError(reply.error);
  }
  struct stat facts{};
  if (fstat(reply.memory.get(), &facts) != 0) {
    return errno_status("look at memory for a shard");
  }
  const std::lock_guard vaults_lock(vaults_mutex_);
  auto known = vaults_.find(facts.st_ino);
  if (known == vaults_.end()) {
    KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::attach(std::move(reply.memory), 4096));
    known = vaults_.emplace(facts.st_ino, VaultMemory{sharding, std::move(memory)}).first;
  }
  return state::ShardVault::open(known->second.memory.data(), known->second.memory.size());
}

StatusOr<state::ShardVault> Engine::vault_of(Rank rank, uint64_t data_bytes, uint64_t text_room) {
  return vault(
      {{"sharding", assignment_.sharding}, {"rank", rank}, {"data_bytes", data_bytes}, {"text_room", text_room}});
}

StatusOr<state::ShardVault> Engine::vault_holding(Rank rank, brain::Version version) {
  return vault_holding(assignment_.sharding, rank, version);
}

StatusOr<state::ShardVault> Engine::vault_holding(uint32_t sharding, Rank rank, brain::Version version) {
  return vault({{"sharding", sharding}, {"rank", rank}, {"version", version}});
}

StatusOr<std::optional<std::string>> Engine::find_shard(const Activation& activation, bool need) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  const brain::Version version = activation.version;
  const auto world = static_cast<Rank>(assignment_.world);
  const Rank self = assignment_.rank;
  std::set<Rank> here(activation.copies.begin(), activation.copies.end());
  if (across()) {
    std::vector<ShardNotice> notices;
    const auto giver_of = [&](Rank rank) -> std::optional<Rank> {
      const auto giver =
          std::find_if(notices.begin(), notices.end(), [&](const ShardNotice& each) { return each.holds(rank); });
      return giver == notices.end() ? std::nullopt : std::optional(static_cast<Rank>(giver - notices.begin()));
    };
    // All ranks know the same then, and come to the same plan: again, where who is to give a copy found it corrupt.
    std::set<Rank> sound;
    for (bool planned = false; !planned;) {
      std::vector<ShardNotice> before = std::exchange(notices, {});
      KEEPSTEP_ASSIGN_OR_RETURN(notices, share_copies(here, need));
      planned = notices == before;
      bool none_moves = true;
      for (Rank rank = 0; rank < world; ++rank) {
        const std::optional<Rank> giver = notices[rank].needs() ? giver_of(rank) : std::nullopt;
        none_moves = none_moves && !giver.has_value();
        if (giver == self && sound.insert(rank).second) {
          KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_holding(rank, version));
          if (!keep_if_sound(vault, version, vault.verify(version)).ok()) {
            here.erase(rank);
          }
        }
      }
      planned = planned || none_moves;
    }
    std::vector<Rank> lost;
    for (Rank rank = 0; rank < world; ++rank) {
      if (!notices[rank].needs()) {
        continue;
      }
      const std::optional<Rank> from = giver_of(rank);
      if (!from.has_value()) {
        lost.push_back(rank);
      } else if (*from == self) {
        KEEPSTEP_RETURN_IF_ERROR(hand_over(rank, rank, version));
      } else if (rank == self) {
        KEEPSTEP_RETURN_IF_ERROR(take_over(rank, *from, version));
      }
    }
    // All know, and join in. What is divided otherwise comes from the shards of before (engine_reshard.cc).
    if (!lost.empty() && assignment_.from.number == assignment_.sharding) {
      KEEPSTEP_RETURN_IF_ERROR(rebuild_shards(activation, lost, giver_of));
    }
  }
  if (!need) {
    return std::optional<std::string>();
  }
  StatusOr<state::ShardVault> vault = vault_holding(self, version);
  if (absl::IsAborted(vault.status()) || absl::IsCancelled(vault.status())) {
    return vault.status();
  }
  if (!vault.ok()) {
    return std::optional<std::string>();
  }
  StatusOr<std::string> text = vault->text(version);
  KEEPSTEP_RETURN_IF_ERROR(keep_if_sound(*vault, version, text.status()));
  return std::optional(*std::move(text));
}

// What every rank says, by rank.
StatusOr<std::vector<ShardNotice>> Engine::share_copies(const std::set<Rank>& here, bool need) {
  const auto world = static_cast<Rank>(assignment_.world);
  std::vector<ShardNotice> notices(world, ShardNotice(world));
  ShardNotice mine(world);
  if (need && !here.contains(assignment_.rank)) {
    mine.set_need();
  }
  if (speaks_for_node()) {
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
  KEEPSTEP_RETURN_IF_ERROR(exchange(communicator_->all_gather(comm::kWorld, mine.data(), outputs, mine.size())));
  return notices;
}

// `found` is what came of reading it. A corrupt copy is taken away, so that the next look finds another one.
Status Engine::keep_if_sound(state::ShardVault& vault, brain::Version version, Status found) {
  if (absl::IsDataLoss(found)) {
    note("corrupt_copy", version, absl::StrCat(found.message(), "; it is taken away, and others are used"));
    vault.begin(version);
  }
  return found;
}

bool Engine::speaks_for_node() const {
  const auto first = std::find_if(members_.begin(), members_.end(), [](const std::byte* m) { return m != nullptr; });
  return members_[assignment_.rank] == *first;
}

Status Engine::hand_over(Rank shard, Rank to, brain::Version version) {
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_holding(shard, version));
  const ShardHead head{*vault.seal_of(version), vault.data_bytes(), vault.text_room()};
  const auto send = [&](const void* data, size_t bytes) {
    return exchange(communicator_->send(comm::kWorld, data, bytes, to, kTagShardHandover));
  };
  KEEPSTEP_RETURN_IF_ERROR(send(&head, sizeof(head)));
  KEEPSTEP_RETURN_IF_ERROR(send(vault.text_slot(version).data(), head.seal.text_bytes));
  return send(vault.data(version).data(), vault.data_bytes());
}

Status Engine::take_over(Rank shard, Rank from, brain::Version version) {
  const auto receive = [&](void* data, size_t bytes) {
    return exchange(communicator_->receive(comm::kWorld, data, bytes, from, kTagShardHandover));
  };
  ShardHead head;
  KEEPSTEP_RETURN_IF_ERROR(receive(&head, sizeof(head)));
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_of(shard, head.data_bytes, head.text_room));
  if (head.seal.version != version || head.seal.text_bytes > vault.text_room()) {
    return absl::InternalError(absl::StrFormat("rank %d gave version %d of a shard where version %d was due", from,
                                               head.seal.version, version));
  }
  vault.begin(version);
  KEEPSTEP_RETURN_IF_ERROR(receive(vault.text_slot(version).data(), head.seal.text_bytes));
  KEEPSTEP_RETURN_IF_ERROR(receive(vault.data(version).data(), vault.data_bytes()));
  vault.finish(head.seal);
  return keep_if_sound(vault, version, vault.verify(version));
}

Status Engine::exchange(comm::OpId op) {
  const comm::Completion completion = communicator_->wait(op);
  communicator_->forget(op);
  if (completion.outcome == Outcome::kDone) {
    return absl::OkStatus();
  }
  if (completion.outcome == Outcome::kInterrupted) {
    return absl::AbortedError("the generation was interrupted");
  }
  return await_interruption(absl::UnavailableError(completion.error));
}

Status Engine::load_shard(brain::Version version, const std::vector<state::Region>& regions) {
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, vault_holding(assignment_.rank, version));
  KEEPSTEP_ASSIGN_OR_RETURN(const state::TensorSpace space, state::TensorSpace::create(regions));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(copy_));
  return keep_if_sound(vault, version, vault.read(version, space, copy_));
}

Status Engine::protect_shard(brain::Version version, std::vector<state::Region> regions, std::string text,
                             const Protection& protection) {
  if (version > assignment_.version && !std::exchange(settled_, true)) {
    // That step was decided, so every rank had its copies of the version before.
    (void)send(MessageType::kSettled, {{"sharding", assignment_.sharding}});
    shard_exchange_.reset();
    const std::lock_guard lock(vaults_mutex_);
    std::erase_if(vaults_, [this](const auto& each) { return each.second.sharding != assignment_.sharding; });
  }
  protection_ = protection;
  if (shard_replicas_ == nullptr) {
    const ShardKeepers keepers(nodes_, protection);
    if (keepers.shortfall() != shortfall_) {
      shortfall_ = keepers.shortfall();
      if (assignment_.rank == 0 && !shortfall_.empty()) {
        std::fprintf(stderr, "keepstep: %s\n", shortfall_.c_str());
      }
    }
    shard_replicas_ = std::make_unique<ShardReplicas>(
        *communicator_, assignment_.rank, keepers.of(assignment_.rank),
        [this](Rank rank, uint64_t data_bytes, uint64_t text_room) { return vault_of(rank, data_bytes, text_room); },
        [this](const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room) {
          return parity_vault_of(block, data_bytes, text_room);
        },
        copy_);
  }
  shard_replicas_->start(version, std::move(regions), std::move(text));
  return absl::OkStatus();
}

Status Engine::wait_shard(brain::Version version) {
  if (shard_replicas_ == nullptr) {
    return absl::OkStatus();
  }
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);  // it computes nothing meanwhile
  const Status status = shard_replicas_->wait(version);
  if (absl::IsAborted(status)) {
    return absl::OkStatus();
  }
  return absl::IsUnavailable(status) ? await_interruption(status) : status;
}

ShardReplicas::Counts Engine::shard_counts() const {
  return shard_replicas_ == nullptr ? ShardReplicas::Counts() : shard_replicas_->counts();
}

}  // namespace keepstep::worker
