#include "comm/group_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/checksum.h"
#include "comm/sync.h"

namespace keepstep::comm {
namespace {

std::string list(std::span<const uint32_t> ranks) { return absl::StrCat("[", absl::StrJoin(ranks, ", "), "]"); }

bool meet(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

}  // namespace

bool GroupTable::lock() {
  Header& header = layout_.header(generation_);
  const auto take = [&] {
    uint32_t free = 0;
    return header.table_lock.compare_exchange_strong(free, self_ + 1, std::memory_order_seq_cst);
  };
  while (!take()) {
    if (interrupted_.load(std::memory_order_seq_cst) != 0) {
      return false;
    }
    sleep_on(header.table_bell, kLookAgainNs, [&] { return header.table_lock.load(std::memory_order_seq_cst) == 0; });
  }
  return true;
}

void GroupTable::unlock() {
  Header& header = layout_.header(generation_);
  header.table_lock.store(0, std::memory_order_seq_cst);
  ring(header.table_bell);
}

StatusOr<bool> GroupTable::try_join(uint64_t identity, const std::string& key, std::span<const Rank> members,
                                    size_t local_count, Joined* group) {
  GroupBlock* free = nullptr;
  for (uint32_t index = 1; index < layout_.groups(); ++index) {
    GroupBlock& block = layout_.group(generation_, index);
    if (block.identity == 0 && free == nullptr) {
      free = &block;
      group->index = index;
    }
    const std::span<const uint32_t> theirs(layout_.members(generation_, index),
                                           std::min(block.member_count, layout_.max_world()));
    if (block.identity != identity || !meet(theirs, members)) {
      continue;
    }
    if (!std::equal(theirs.begin(), theirs.end(), members.begin(), members.end())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "create_group: rank ", self_, " gives group '", key, "' the ranks ", list(members), "; another member gave ",
          list(theirs), ". All members must name the same ranks in the same order, or use another key"));
    }
    *group = {index, block.incarnation, identity};
    return true;
  }
  if (free == nullptr) {
    return false;
  }
  free->identity = identity;
  free->member_count = static_cast<uint32_t>(members.size());
  free->local_count = static_cast<uint32_t>(local_count);
  std::copy(members.begin(), members.end(), layout_.members(generation_, group->index));
  group->incarnation = free->incarnation;
  group->identity = identity;
  return true;
}

StatusOr<GroupTable::Joined> GroupTable::join(const std::string& key, uint32_t nth, std::span<const Rank> members,
                                              size_t local_count, int64_t patience_ns) {
  const std::string text = absl::StrCat(key, "#", nth);
  const uint64_t identity = checksum(text.data(), text.size()) | 1;
  const int64_t deadline_ns = deadline_after(patience_ns);
  Bell& bell = layout_.header(generation_).table_bell;
  while (true) {
    if (!lock()) {
      return absl::UnavailableError(absl::StrCat("create_group: interrupted while making group '", key, "'"));
    }
    Joined group;
    const StatusOr<bool> joined = try_join(identity, key, members, local_count, &group);
    bool some_leaving = leaving_.load(std::memory_order_relaxed) > 0;
    for (uint32_t index = 1; index < layout_.groups(); ++index) {
      some_leaving = some_leaving || layout_.group(generation_, index).left > 0;
    }
    unlock();
    if (!joined.ok()) {
      return joined.status();
    }
    if (*joined) {
      return group;
    }
    const int64_t left_ns = deadline_ns - monotonic_ns();
    if (!some_leaving || left_ns <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("create_group: no place for group '", key, "': all ", layout_.groups() - 1,
                       " groups beside the world are in use. Release groups that are done (on every member), or raise "
                       "CommConfig.groups"));
    }
    sleep_on(bell, std::min<int64_t>(left_ns, 1'000'000), [] { return false; });
  }
}

void GroupTable::leave(uint32_t index) {
  if (!lock()) {
    return;  // interrupted: the generation ends, and its table with it
  }
  leaving_.fetch_sub(1, std::memory_order_relaxed);
  GroupBlock& block = layout_.group(generation_, index);
  if (++block.left == block.local_count) {
    RankLine* lines = layout_.lines(generation_, index);
    for (uint32_t i = 0; i < block.local_count; ++i) {
      lines[i].phase.store(0, std::memory_order_relaxed);
    }
    block.given_up_by.store(0, std::memory_order_relaxed);
    block.identity = 0;
    block.member_count = block.local_count = block.left = 0;
    ++block.incarnation;
  }
  unlock();
}

}  // namespace keepstep::comm
