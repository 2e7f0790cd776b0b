#include "state/vault/parity_vault.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/checksum.h"

namespace keepstep::state {
namespace {

static_assert(std::is_trivially_copyable_v<MemberShard>);

constexpr uint64_t kMaxText = uint64_t{1} << 46;  // of one member; so that sums of them fit

uint64_t table_bytes(size_t members) { return sizeof(uint64_t) + members * sizeof(MemberShard); }

uint64_t longest(std::span<const MemberShard> members) {
  uint64_t most = 0;
  for (const MemberShard& member : members) {
    most = std::max(most, member.data_bytes);
  }
  return most;
}

// Where each member's text begins; the last element is where they end.
std::vector<uint64_t> places_of_texts(std::span<const MemberShard> members) {
  std::vector<uint64_t> places = {table_bytes(members.size())};
  for (const MemberShard& member : members) {
    places.push_back(places.back() + member.seal.text_bytes);
  }
  return places;
}

uint64_t sum_of_sums(const std::vector<uint64_t>& sums) {
  return checksum(sums.data(), sums.size() * sizeof(uint64_t));
}

}  // namespace

uint64_t chunk_bytes(uint64_t data_bytes, uint64_t chunk) {
  return chunk >= chunks_of(data_bytes) ? 0 : std::min<uint64_t>(kVaultChunk, data_bytes - chunk * kVaultChunk);
}

uint64_t chunks_of(uint64_t data_bytes) { return (data_bytes + kVaultChunk - 1) / kVaultChunk; }

ParityRoom parity_room(std::span<const MemberShard> members) {
  ParityRoom room{longest(members), table_bytes(members.size())};
  for (const MemberShard& member : members) {
    room.text_room += member.text_room;
  }
  return room;
}

StatusOr<ReedSolomon> code_of(const brain::ParityBlock& block) {
  return ReedSolomon::create(static_cast<uint32_t>(block.members.size()), block.row + 1);
}

// ---- making parity --------------------------------------------------------------------------------------------------

ParityMaker::ParityMaker(ShardVault vault, const ReedSolomon& code, std::vector<MemberShard> members)
    : vault_(vault),
      code_(&code),
      members_(std::move(members)),
      texts_at_(places_of_texts(members_)),
      text_bytes_(texts_at_.back()),
      sums_(members_.size()) {}

StatusOr<ParityMaker> ParityMaker::begin(ShardVault vault, const ReedSolomon& code, std::vector<MemberShard> members) {
  const std::optional<brain::ParityBlock> block = vault.parity();
  const auto other_version = [&](const MemberShard& member) {
    return member.seal.version != members.front().seal.version;
  };
  if (!block.has_value() || block->members.size() != members.size() || vault.data_bytes() != longest(members) ||
      code.data() != members.size() || code.parity() <= block->row ||
      std::any_of(members.begin(), members.end(), other_version)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("memory with %d bytes of data is not for the parity of these %d shards, the longest of %d",
                        vault.data_bytes(), members.size(), longest(members)));
  }
  for (const MemberShard& member : members) {
    if (member.seal.text_bytes > kMaxText) {
      return absl::ResourceExhaustedError(absl::StrFormat("a text of %d bytes", member.seal.text_bytes));
    }
  }
  ParityMaker maker(vault, code, std::move(members));
  if (maker.text_bytes_ > vault.text_room()) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("texts of %d bytes, with room for %d", maker.text_bytes_, vault.text_room()));
  }
  vault.begin(maker.members_.front().seal.version);
  return maker;
}

std::span<std::byte> ParityMaker::text_of(size_t member) {
  return vault_.text_slot(members_.front().seal.version).subspan(texts_at_[member], members_[member].seal.text_bytes);
}

uint64_t ParityMaker::chunks() const { return chunks_of(vault_.data_bytes()); }

Status ParityMaker::add(std::span<const ReedSolomon::ConstBlock> chunks) {
  const std::span<std::byte> into =
      vault_.data(members_.front().seal.version).subspan(next_ * kVaultChunk, chunk_bytes(vault_.data_bytes(), next_));
  const uint32_t row = vault_.parity()->row;
  std::vector<std::optional<ReedSolomon::ConstBlock>> blocks(code_->data() + code_->parity());
  for (size_t member = 0; member < members_.size(); ++member) {
    blocks[member] = chunks[member];
    if (!chunks[member].empty()) {
      sums_[member].push_back(checksum(chunks[member].data(), chunks[member].size()));
    }
  }
  const ReedSolomon::Wanted wanted{static_cast<uint32_t>(members_.size()) + row, into};
  KEEPSTEP_RETURN_IF_ERROR(code_->rebuild(blocks, {&wanted, 1}).status());
  parity_sums_.push_back(checksum(into.data(), into.size()));
  ++next_;
  return absl::OkStatus();
}

bool ParityMaker::finish() {
  for (size_t member = 0; member < members_.size(); ++member) {
    const VaultSeal& seal = members_[member].seal;
    const std::span<const std::byte> text = text_of(member);
    if (sum_of_sums(sums_[member]) != seal.data_checksum || checksum(text.data(), text.size()) != seal.text_checksum) {
      return false;
    }
  }
  const brain::Version version = members_.front().seal.version;
  std::byte* const text = vault_.text_slot(version).data();
  const uint64_t count = members_.size();
  std::memcpy(text, &count, sizeof(count));
  std::memcpy(text + sizeof(count), members_.data(), count * sizeof(MemberShard));
  vault_.finish({version, text_bytes_, sum_of_sums(parity_sums_), checksum(text, text_bytes_)});
  return true;
}

// ---- its text -------------------------------------------------------------------------------------------------------

StatusOr<ParityText> ParityText::parse(std::string text, size_t members) {
  const auto wrong = [&](const char* what) {
    return absl::DataLossError(
        absl::StrFormat("a text of %d bytes describes no parity of %d shards: %s", text.size(), members, what));
  };
  uint64_t count = 0;
  if (text.size() < table_bytes(members)) {
    return wrong("it is too short");
  }
  std::memcpy(&count, text.data(), sizeof(count));
  if (count != members) {
    return wrong("it is of another number of them");
  }
  ParityText parsed;
  parsed.members_.resize(members);
  std::memcpy(parsed.members_.data(), text.data() + sizeof(count), members * sizeof(MemberShard));
  for (const MemberShard& member : parsed.members_) {
    if (member.seal.text_bytes > text.size() || member.seal.version != parsed.members_.front().seal.version) {
      return wrong("its members cannot be");
    }
  }
  parsed.texts_at_ = places_of_texts(parsed.members_);
  if (parsed.texts_at_.back() != text.size()) {
    return wrong("its members' texts are of other lengths");
  }
  parsed.text_ = std::move(text);
  return parsed;
}

std::string_view ParityText::text_of(size_t member) const {
  return std::string_view(text_).substr(texts_at_.at(member), members_.at(member).seal.text_bytes);
}

// ---- rebuilding a shard ---------------------------------------------------------------------------------------------

ShardRebuild::ShardRebuild(ShardVault vault, ReedSolomon code, std::vector<MemberShard> members, uint32_t lost,
                           std::vector<uint32_t> blocks)
    : vault_(vault),
      code_(std::move(code)),
      members_(std::move(members)),
      lost_(lost),
      blocks_(std::move(blocks)),
      longest_(longest(members_)) {}

StatusOr<ShardRebuild> ShardRebuild::begin(ShardVault vault, const ParityText& text, uint32_t lost,
                                           std::vector<uint32_t> blocks) {
  const std::vector<MemberShard>& members = text.members();
  if (lost >= members.size() || blocks.size() != members.size() || vault.data_bytes() != members[lost].data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d blocks cannot make shard %d of %d, into memory with %d bytes of data", blocks.size(), lost,
                        members.size(), vault.data_bytes()));
  }
  const uint32_t last = *std::max_element(blocks.begin(), blocks.end());
  const auto count = static_cast<uint32_t>(members.size());
  KEEPSTEP_ASSIGN_OR_RETURN(ReedSolomon code, ReedSolomon::create(count, std::max(last, count) + 1 - count));
  const brain::Version version = members[lost].seal.version;
  vault.begin(version);
  KEEPSTEP_RETURN_IF_ERROR(vault.put_text(version, text.text_of(lost)));
  return ShardRebuild(vault, std::move(code), members, lost, std::move(blocks));
}

uint64_t ShardRebuild::chunks() const { return chunks_of(longest_); }

uint64_t ShardRebuild::bytes_of(size_t source, uint64_t chunk) const {
  const uint32_t block = blocks_[source];
  return chunk_bytes(block < members_.size() ? members_[block].data_bytes : longest_, chunk);
}

Status ShardRebuild::add(std::span<const ReedSolomon::ConstBlock> chunks) {
  const uint64_t bytes = chunk_bytes(vault_.data_bytes(), next_);
  if (bytes > 0) {
    std::vector<std::optional<ReedSolomon::ConstBlock>> blocks(code_.data() + code_.parity());
    for (size_t source = 0; source < blocks_.size(); ++source) {
      blocks[blocks_[source]] = chunks[source];
    }
    const ReedSolomon::Wanted wanted{lost_,
                                     vault_.data(members_[lost_].seal.version).subspan(next_ * kVaultChunk, bytes)};
    KEEPSTEP_RETURN_IF_ERROR(code_.rebuild(blocks, {&wanted, 1}).status());
  }
  ++next_;
  return absl::OkStatus();
}

Status ShardRebuild::finish() {
  const VaultSeal& seal = members_[lost_].seal;
  const std::span<const std::byte> data = vault_.data(seal.version);
  const std::span<const std::byte> text = vault_.text_slot(seal.version).first(seal.text_bytes);
  if (vault_checksum(data) != seal.data_checksum || checksum(text.data(), text.size()) != seal.text_checksum) {
    return absl::DataLossError(
        absl::StrFormat("the shard of rank %d at version %d was rebuilt and has another checksum "
                        "than it had: a block that it was made from is corrupt",
                        vault_.rank(), seal.version));
  }
  vault_.finish(seal);
  return absl::OkStatus();
}

}  // namespace keepstep::state
