#include "state/vault/shard_vault.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "brain/copies/parity_placement.h"

namespace keepstep::state {
namespace {

constexpr uint64_t kMagic = 0x3353'5641'5450'534b;  // "KSPTAVS3"
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxBytes = uint64_t{1} << 46;  // of either part; so that sums of them fit

uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// std::nullopt if it gave up; asks `give_up` before each chunk.
template <class GiveUp>
std::optional<uint64_t> checksum_unless(const GiveUp& give_up, std::span<const std::byte> data) {
  VaultChecksum checksum;
  for (; !data.empty(); data = data.subspan(std::min(kVaultChunk, data.size()))) {
    if (give_up()) {
      return std::nullopt;
    }
    checksum.add(data.first(std::min(kVaultChunk, data.size())));
  }
  return checksum.whole();
}

}  // namespace

struct ShardVault::Slot {
  std::atomic<uint64_t> version_plus_1;  // 0: nothing whole
  std::atomic<uint64_t> opened_plus_1;   // the version most recently begun here
  uint64_t text_bytes;
  uint64_t data_checksum;
  uint64_t text_checksum;
  int64_t whole_since_ns;
};

struct ShardVault::Header {
  uint64_t magic;
  uint32_t rank;
  uint32_t row;  // of a parity block
  uint64_t data_bytes;
  uint64_t text_room;
  alignas(64) Slot slots[2];
  uint32_t member_count;  // 0 for a shard
  uint32_t members[brain::kMaxBlocksOfGroup];
};

uint64_t ShardVault::memory_bytes(uint64_t data_bytes, uint64_t text_bytes) {
  return kPage + 2 * (pages(data_bytes) + pages(text_bytes));
}

void ShardVault::initialize(std::byte* memory, brain::Rank rank, uint64_t data_bytes, uint64_t text_bytes) {
  static_assert(sizeof(Header) <= kPage && std::atomic<uint64_t>::is_always_lock_free);
  auto& header = *reinterpret_cast<Header*>(memory);
  header.rank = rank;
  header.data_bytes = data_bytes;
  header.text_room = text_bytes;
  header.magic = kMagic;
}

void ShardVault::initialize(std::byte* memory, const brain::ParityBlock& block, uint64_t data_bytes,
                            uint64_t text_bytes) {
  KEEPSTEP_CHECK(brain::is_possible(block), "memory for a parity block that no code has");
  auto& header = *reinterpret_cast<Header*>(memory);
  header.row = block.row;
  header.member_count = static_cast<uint32_t>(block.members.size());
  std::copy(block.members.begin(), block.members.end(), header.members);
  initialize(memory, block.members.front(), data_bytes, text_bytes);
}

StatusOr<ShardVault> ShardVault::open(std::byte* memory, uint64_t bytes) {
  if (bytes < kPage) {
    return absl::InvalidArgumentError(absl::StrFormat("memory of %d bytes holds no shard", bytes));
  }
  const auto& header = *reinterpret_cast<const Header*>(memory);
  if (header.magic != kMagic || header.data_bytes > kMaxBytes || header.text_room > kMaxBytes ||
      header.member_count > brain::kMaxBlocksOfGroup || memory_bytes(header.data_bytes, header.text_room) > bytes) {
    return absl::InvalidArgumentError("memory that holds no shard of this version of keepstep");
  }
  return ShardVault(memory);
}

ShardVault::Header& ShardVault::header() const { return *reinterpret_cast<Header*>(memory_); }

// The slot that holds `version`, or in which it was begun; null if there is none.
ShardVault::Slot* ShardVault::find(brain::Version version) const {
  Slot* begun = nullptr;
  for (Slot& each : header().slots) {
    if (each.version_plus_1.load() == version + 1) {
      return &each;
    }
    if (each.version_plus_1.load() == 0 && each.opened_plus_1.load() == version + 1) {
      begun = &each;
    }
  }
  return begun;
}

ShardVault::Slot* ShardVault::find_whole(brain::Version version) const {
  Slot* const found = find(version);
  return found != nullptr && found->version_plus_1.load() == version + 1 ? found : nullptr;
}

ShardVault::Slot& ShardVault::slot(brain::Version version) const {
  Slot* const found = find(version);
  KEEPSTEP_CHECK(found != nullptr, "a version of a shard that was not begun");
  return *found;
}

brain::Rank ShardVault::rank() const { return header().rank; }
std::optional<brain::ParityBlock> ShardVault::parity() const {
  const Header& of = header();
  if (of.member_count == 0) {
    return std::nullopt;
  }
  return brain::ParityBlock{{of.members, of.members + of.member_count}, of.row};
}

std::string ShardVault::what() const {
  const std::optional<brain::ParityBlock> block = parity();
  return block.has_value()
             ? absl::StrCat("parity ", block->row, " of the shards of ranks ", absl::StrJoin(block->members, ", "))
             : absl::StrCat("the shard of rank ", rank());
}

uint64_t ShardVault::data_bytes() const { return header().data_bytes; }
uint64_t ShardVault::text_room() const { return header().text_room; }

std::byte* ShardVault::text_memory(const Slot& of) const {
  const auto index = static_cast<uint64_t>(&of - header().slots);
  return memory_ + kPage + index * (pages(data_bytes()) + pages(text_room()));
}

std::byte* ShardVault::data_memory(const Slot& of) const { return text_memory(of) + pages(text_room()); }

bool ShardVault::has(brain::Version version) const { return find_whole(version) != nullptr; }

std::vector<brain::Version> ShardVault::versions() const {
  std::vector<brain::Version> versions;
  for (const Slot& each : header().slots) {
    if (const uint64_t plus_1 = each.version_plus_1.load(); plus_1 != 0) {
      versions.push_back(plus_1 - 1);
    }
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

std::optional<VaultSeal> ShardVault::seal_of(brain::Version version) const {
  const Slot* const each = find_whole(version);
  if (each == nullptr) {
    return std::nullopt;
  }
  return VaultSeal{version, each->text_bytes, each->data_checksum, each->text_checksum};
}

int64_t ShardVault::whole_since_ns(brain::Version version) const {
  const Slot* const each = find(version);
  return each == nullptr ? monotonic_ns() : each->whole_since_ns;  // it may have gone since somebody saw it
}

void ShardVault::begin(brain::Version version) {
  Slot* chosen = find(version);
  if (chosen == nullptr) {
    // An empty slot; of two, the one whose turn it is when every version is copied. Otherwise the older one.
    Slot* const turn = &header().slots[version % 2];
    Slot* const other = &header().slots[(version + 1) % 2];
    chosen = turn->version_plus_1.load() <= other->version_plus_1.load() ? turn : other;
  }
  chosen->version_plus_1 = 0;
  chosen->opened_plus_1 = version + 1;
  std::atomic_thread_fence(std::memory_order_release);  // for check(): a reader that sees new bytes sees this, too
}

std::span<std::byte> ShardVault::data(brain::Version version) { return {data_memory(slot(version)), data_bytes()}; }

std::span<std::byte> ShardVault::text_slot(brain::Version version) { return {text_memory(slot(version)), text_room()}; }

Status ShardVault::put_text(brain::Version version, std::string_view text) {
  if (text.size() > text_room()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the description of %s took at most %d bytes when training began and takes %d now; protect what grows so "
        "much as a tensor",
        what(), text_room(), text.size()));
  }
  std::memcpy(text_memory(slot(version)), text.data(), text.size());
  return absl::OkStatus();
}

void ShardVault::finish(const VaultSeal& seal) {
  Slot& each = slot(seal.version);
  each.text_bytes = seal.text_bytes;
  each.data_checksum = seal.data_checksum;
  each.text_checksum = seal.text_checksum;
  each.whole_since_ns = monotonic_ns();
  each.version_plus_1 = seal.version + 1;
}

StatusOr<bool> ShardVault::write(brain::Version version, const TensorSpace& tensors, DeviceCopy& copy,
                                 std::string_view text, const std::function<bool()>& give_up) {
  if (tensors.total_bytes() != data_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d bytes now, and had %d", what(), tensors.total_bytes(), data_bytes()));
  }
  begin(version);
  KEEPSTEP_RETURN_IF_ERROR(put_text(version, text));
  std::byte* to = data_memory(slot(version));
  VaultChecksum data_checksum;
  for (uint64_t at = 0; at < data_bytes(); at += kVaultChunk) {
    if (give_up()) {
      return false;
    }
    data_checksum.add(tensors.read(copy, at, std::min<uint64_t>(kVaultChunk, data_bytes() - at), to + at));
  }
  finish({version, text.size(), data_checksum.whole(), checksum(text.data(), text.size())});
  return true;
}

void ShardVault::drop_beyond(brain::Version version) {
  for (Slot& each : header().slots) {
    if (each.version_plus_1.load() > version + 1) {
      each.version_plus_1 = 0;
    }
  }
}

StatusOr<const ShardVault::Slot*> ShardVault::whole(brain::Version version) const {
  const Slot* const each = find_whole(version);
  if (each == nullptr || each->text_bytes > text_room()) {
    return absl::NotFoundError(absl::StrFormat("no copy of %s at version %d is here", what(), version));
  }
  return each;
}

Status ShardVault::verify(brain::Version version) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const Slot* const each, whole(version));
  if (vault_checksum({data_memory(*each), data_bytes()}) != each->data_checksum ||
      checksum(text_memory(*each), each->text_bytes) != each->text_checksum) {
    return absl::DataLossError(absl::StrFormat("the copy of %s at version %d is corrupt", what(), version));
  }
  return absl::OkStatus();
}

VaultCheck ShardVault::check(brain::Version version, const std::function<bool()>& give_up) const {
  const std::optional<VaultSeal> seal = seal_of(version);
  const Slot* const of = find(version);
  if (!seal.has_value() || of == nullptr) {
    return VaultCheck::kOverwritten;
  }
  const std::byte* const data = data_memory(*of);
  // Twice: a version may have gone and come back, with the same seal, during the read.
  for (int tries = 0; tries < 2; ++tries) {
    const std::optional<uint64_t> sum = checksum_unless(give_up, {data, data_bytes()});
    if (!sum.has_value()) {
      return VaultCheck::kGivenUp;
    }
    const bool good = seal->text_bytes <= text_room() && sum == seal->data_checksum &&
                      checksum(text_memory(*of), seal->text_bytes) == seal->text_checksum;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (seal_of(version) != seal) {
      return VaultCheck::kOverwritten;
    }
    if (good) {
      return VaultCheck::kGood;
    }
  }
  return VaultCheck::kCorrupt;
}

StatusOr<std::string> ShardVault::text(brain::Version version) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const Slot* const each, whole(version));
  std::string text(reinterpret_cast<const char*>(text_memory(*each)), each->text_bytes);
  if (checksum(text.data(), text.size()) != each->text_checksum) {
    return absl::DataLossError(
        absl::StrFormat("what describes the copy of %s at version %d is corrupt", what(), version));
  }
  return text;
}

Status ShardVault::read(brain::Version version, const TensorSpace& tensors, DeviceCopy& copy) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const Slot* const each, whole(version));
  if (tensors.total_bytes() != data_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the copy of %s has %d bytes, not %d", what(), data_bytes(), tensors.total_bytes()));
  }
  VaultChecksum data_checksum;
  const std::byte* from = data_memory(*each);
  for (uint64_t at = 0; at < data_bytes(); at += kVaultChunk) {
    data_checksum.add(tensors.write(copy, at, std::min<uint64_t>(kVaultChunk, data_bytes() - at), from + at));
  }
  if (data_checksum.whole() != each->data_checksum) {
    return absl::DataLossError(absl::StrFormat("the copy of %s at version %d is corrupt", what(), version));
  }
  return absl::OkStatus();
}

uint64_t vault_checksum(std::span<const std::byte> data) {
  return *checksum_unless([] { return false; }, data);
}

}  // namespace keepstep::state
