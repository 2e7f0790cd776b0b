#include "rank/shards/shard_memory.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace keepstep::rank {

using brain::ParityBlock;
using brain::Version;
using comm::Rank;

StatusOr<state::ShardVault> ShardMemory::ask(messages::VaultQuestion question) {
  const uint32_t sharding = question.sharding;
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, agent_.ask_vault(std::move(question)));
  struct stat facts{};
  if (fstat(fd.get(), &facts) != 0) {
    return errno_status("look at memory for a shard");
  }
  const std::lock_guard lock(mutex_);
  auto known = mapped_.find(facts.st_ino);
  if (known == mapped_.end()) {
    KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::attach(std::move(fd), 4096));
    known = mapped_.emplace(facts.st_ino, Mapped{sharding, std::move(memory)}).first;
  }
  return state::ShardVault::open(known->second.memory.data(), known->second.memory.size());
}

StatusOr<state::ShardVault> ShardMemory::of(Rank rank, uint64_t data_bytes, uint64_t text_room) {
  return ask(
      {.sharding = generation_.assignment.sharding, .rank = rank, .data_bytes = data_bytes, .text_room = text_room});
}

StatusOr<state::ShardVault> ShardMemory::of(const ParityBlock& block, uint64_t data_bytes, uint64_t text_room) {
  return ask(
      {.sharding = generation_.assignment.sharding, .block = block, .data_bytes = data_bytes, .text_room = text_room});
}

StatusOr<state::ShardVault> ShardMemory::holding(Rank rank, Version version) {
  return holding(generation_.assignment.sharding, rank, version);
}

StatusOr<state::ShardVault> ShardMemory::holding(uint32_t sharding, Rank rank, Version version) {
  return ask({.sharding = sharding, .rank = rank, .version = version});
}

StatusOr<state::ShardVault> ShardMemory::holding(const ParityBlock& block, Version version) {
  return ask({.sharding = generation_.assignment.sharding, .block = block, .version = version});
}

Status ShardMemory::keep_if_sound(state::ShardVault& vault, Version version, Status found) {
  if (absl::IsDataLoss(found)) {
    note("corrupt_copy", version, absl::StrCat(found.message(), "; it is taken away, and others are used"));
    vault.begin(version);
  }
  return found;
}

void ShardMemory::note(const char* event, Version version, const std::string& because) {
  (void)agent_.send(messages::Note{event, version, because, ""});
}

void ShardMemory::forget_others() {
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [this](const auto& each) { return each.second.sharding != generation_.assignment.sharding; });
}

void ShardMemory::forget() {
  const std::lock_guard lock(mutex_);
  mapped_.clear();
}

}  // namespace keepstep::rank
