#include "state/vault/parity_vault.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>

namespace keepstep::state {
namespace {

constexpr uint64_t kRoom = 300;
constexpr brain::Version kVersion = 7;

class Memory {
 public:
  Memory(const auto& what, uint64_t data_bytes, uint64_t text_room)
      : bytes_(ShardVault::memory_bytes(data_bytes, text_room)), memory_(std::make_unique<std::byte[]>(bytes_)) {
    ShardVault::initialize(memory_.get(), what, data_bytes, text_room);
  }
  ShardVault vault() const { return *ShardVault::open(memory_.get(), bytes_); }

 private:
  uint64_t bytes_;
  std::unique_ptr<std::byte[]> memory_;
};

// Shards of a group in vaults, as ranks write them, and their parity.
class Group {
 public:
  Group(std::vector<uint64_t> sizes, uint32_t parity, uint64_t seed) : random_(seed), parity_(parity) {
    for (brain::Rank rank = 0; rank < sizes.size(); ++rank) {
      members_.push_back(10 + rank);
      std::vector<std::byte>& bytes = bytes_.emplace_back(sizes[rank]);
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random_());
      }
      shards_.emplace_back(10 + rank, sizes[rank], kRoom);
      ShardVault vault = shards_.back().vault();
      const auto space = *TensorSpace::create({{bytes.data(), bytes.size()}});
      HostCopy copy;
      EXPECT_TRUE(*vault.write(kVersion, space, copy, "text of " + std::string(rank * 3, 'x'), [] { return false; }));
    }
    for (uint32_t row = 0; row < parity; ++row) {
      const ParityRoom room = parity_room(labels());
      rows_.emplace_back(brain::ParityBlock{members_, row}, room.data_bytes, room.text_room);
    }
  }

  std::vector<MemberShard> labels() const {
    std::vector<MemberShard> labels;
    for (const Memory& shard : shards_) {
      labels.push_back({*shard.vault().seal_of(kVersion), shard.vault().data_bytes(), shard.vault().text_room()});
    }
    return labels;
  }

  ShardVault row(uint32_t number) const { return rows_[number].vault(); }
  ShardVault shard(uint32_t number) const { return shards_[number].vault(); }
  size_t size() const { return members_.size(); }

  // Makes a block as bytes arrive; `flip`: one chunk of this member arrives corrupt.
  bool make(uint32_t number, std::optional<uint32_t> flip = std::nullopt) {
    const ReedSolomon code = *code_of(*row(number).parity());
    auto maker = *ParityMaker::begin(row(number), code, labels());
    for (uint32_t member = 0; member < size(); ++member) {
      const std::string text = *shard(member).text(kVersion);
      EXPECT_EQ(maker.text_of(member).size(), text.size());
      std::memcpy(maker.text_of(member).data(), text.data(), text.size());
    }
    for (uint64_t chunk = 0; chunk < maker.chunks(); ++chunk) {
      std::vector<std::vector<std::byte>> came(size());
      std::vector<ReedSolomon::ConstBlock> chunks;
      for (uint32_t member = 0; member < size(); ++member) {
        const uint64_t bytes = chunk_bytes(bytes_[member].size(), chunk);
        came[member].assign(bytes_[member].begin() + static_cast<long>(bytes == 0 ? 0 : chunk * kVaultChunk),
                            bytes_[member].begin() + static_cast<long>(bytes == 0 ? 0 : chunk * kVaultChunk + bytes));
        if (flip == member && bytes > 0) {
          came[member].back() ^= std::byte{4};
        }
        chunks.emplace_back(came[member]);
      }
      EXPECT_FALSE(row(number).has(kVersion));
      EXPECT_TRUE(maker.add(chunks).ok());
    }
    return maker.finish();
  }

  // Rebuilds from the blocks with these numbers.
  StatusOr<Memory> rebuild(uint32_t lost, const std::vector<uint32_t>& blocks) {
    const auto parity = std::find_if(blocks.begin(), blocks.end(), [&](uint32_t block) { return block >= size(); });
    KEEPSTEP_ASSIGN_OR_RETURN(std::string read, row(*parity - static_cast<uint32_t>(size())).text(kVersion));
    KEEPSTEP_ASSIGN_OR_RETURN(const ParityText text, ParityText::parse(std::move(read), size()));
    Memory into(members_[lost], text.members()[lost].data_bytes, text.members()[lost].text_room);
    KEEPSTEP_ASSIGN_OR_RETURN(ShardRebuild rebuild, ShardRebuild::begin(into.vault(), text, lost, blocks));
    for (uint64_t chunk = 0; chunk < rebuild.chunks(); ++chunk) {
      std::vector<ReedSolomon::ConstBlock> chunks;
      for (size_t source = 0; source < blocks.size(); ++source) {
        const uint32_t block = blocks[source];
        ShardVault from = block < size() ? shard(block) : row(block - static_cast<uint32_t>(size()));
        const uint64_t bytes = rebuild.bytes_of(source, chunk);
        EXPECT_EQ(bytes, chunk_bytes(from.data_bytes(), chunk));
        chunks.push_back(from.data(kVersion).subspan(bytes == 0 ? 0 : chunk * kVaultChunk, bytes));
      }
      KEEPSTEP_RETURN_IF_ERROR(rebuild.add(chunks));
    }
    EXPECT_FALSE(into.vault().has(kVersion));
    KEEPSTEP_RETURN_IF_ERROR(rebuild.finish());
    return into;
  }

  void expect_shard(uint32_t number, const Memory& memory) {
    EXPECT_TRUE(memory.vault().verify(kVersion).ok());
    const std::span<const std::byte> data = memory.vault().data(kVersion);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), bytes_[number].begin(), bytes_[number].end()));
    EXPECT_EQ(*memory.vault().text(kVersion), *shard(number).text(kVersion));
  }

  // The same parity by reed_solomon in one call.
  std::vector<std::vector<std::byte>> encoded() const {
    std::vector<ReedSolomon::ConstBlock> data(bytes_.begin(), bytes_.end());
    const uint64_t longest = parity_room(labels()).data_bytes;
    std::vector<std::vector<std::byte>> parity(parity_, std::vector<std::byte>(longest));
    std::vector<ReedSolomon::Block> into(parity.begin(), parity.end());
    EXPECT_TRUE(ReedSolomon::create(static_cast<uint32_t>(size()), parity_)->encode(data, into).ok());
    return parity;
  }

 private:
  std::mt19937_64 random_;
  uint32_t parity_;
  std::vector<brain::Rank> members_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<Memory> shards_;
  std::vector<Memory> rows_;
};

const std::vector<std::vector<uint64_t>> kSizes = {
    {1},
    {0, 5, 3},
    {100, 100},
    {kVaultChunk, 1, kVaultChunk + 1, 2 * kVaultChunk},
    {3 * kVaultChunk + 17, 2 * kVaultChunk, 2 * kVaultChunk + 5, 9},
};

TEST(ParityVault, EachRowIsWhatTheCodeSaysOfTheWholeShards) {
  for (const auto& sizes : kSizes) {
    Group group(sizes, 3, sizes.size());
    const auto expected = group.encoded();
    for (uint32_t row = 0; row < 3; ++row) {
      ASSERT_TRUE(group.make(row));
      EXPECT_TRUE(group.row(row).verify(kVersion).ok());
      const std::span<const std::byte> made = group.row(row).data(kVersion);
      EXPECT_TRUE(std::equal(made.begin(), made.end(), expected[row].begin(), expected[row].end())) << row;
    }
  }
}

TEST(ParityVault, AnyShardComesBackFromAnyOtherBlocks) {
  for (const auto& sizes : kSizes) {
    Group group(sizes, 2, sizes.size());
    ASSERT_TRUE(group.make(0) && group.make(1));
    const auto count = static_cast<uint32_t>(sizes.size());
    for (uint32_t lost = 0; lost < count; ++lost) {
      for (uint32_t other = 0; other < count + 2; ++other) {  // nor is it used
        std::vector<uint32_t> blocks;
        for (uint32_t block = 0; block < count + 2 && blocks.size() < count; ++block) {
          if (block != lost && block != other) {
            blocks.push_back(block);
          }
        }
        const auto back = group.rebuild(lost, blocks);
        ASSERT_TRUE(back.ok()) << back.status() << " of " << sizes.size() << " shards";
        group.expect_shard(lost, *back);
      }
    }
  }
}

TEST(ParityVault, WhatArrivesBrokenMakesNoBlock) {
  Group group({kVaultChunk + 5, 900}, 1, 1);
  for (const uint32_t member : {0U, 1U}) {
    EXPECT_FALSE(group.make(0, member));
    EXPECT_FALSE(group.row(0).has(kVersion));
  }
  EXPECT_TRUE(group.make(0));
}

TEST(ParityVault, ACorruptBlockMakesNoShard) {
  Group group({500, 400, 300}, 1, 2);
  ASSERT_TRUE(group.make(0));
  group.row(0).data(kVersion)[100] ^= std::byte{1};
  const auto back = group.rebuild(1, {0, 2, 3});
  EXPECT_TRUE(absl::IsDataLoss(back.status())) << back.status();
}

TEST(ParityVault, SaysWhatItIsOf) {
  Group group({500, 400}, 2, 3);
  EXPECT_EQ(group.row(1).parity(), (brain::ParityBlock{{10, 11}, 1}));
  EXPECT_EQ(group.row(1).rank(), 10);
  EXPECT_FALSE(group.shard(0).parity().has_value());
  EXPECT_EQ(group.row(1).verify(kVersion).message(),
            "no copy of parity 1 of the shards of ranks 10, 11 at version 7 is here");
}

TEST(ParityVault, MembersThatDoNotFitAreRefused) {
  Group group({500, 400}, 1, 4);
  const ReedSolomon code = *code_of(*group.row(0).parity());
  const auto begin = [&](std::vector<MemberShard> members) {
    return ParityMaker::begin(group.row(0), code, std::move(members)).status();
  };
  std::vector<MemberShard> longer = group.labels();
  longer[1].data_bytes = 501;
  EXPECT_TRUE(absl::IsInvalidArgument(begin(longer)));
  std::vector<MemberShard> other = group.labels();
  other[1].seal.version = 8;
  EXPECT_TRUE(absl::IsInvalidArgument(begin(other)));
  EXPECT_TRUE(absl::IsInvalidArgument(begin({group.labels()[0]})));
  std::vector<MemberShard> wordy = group.labels();
  wordy[0].seal.text_bytes = 3 * kRoom;
  EXPECT_TRUE(absl::IsResourceExhausted(begin(wordy)));
  wordy[0].seal.text_bytes = ~uint64_t{0} - 10;
  EXPECT_TRUE(absl::IsResourceExhausted(begin(wordy)));
}

TEST(ParityVault, ATextThatIsNoneIsRefused) {
  Group group({500, 400}, 1, 5);
  ASSERT_TRUE(group.make(0));
  const std::string text = *group.row(0).text(kVersion);
  EXPECT_TRUE(ParityText::parse(text, 2).ok());
  EXPECT_TRUE(absl::IsDataLoss(ParityText::parse(text, 3).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParityText::parse(text.substr(0, 50), 2).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParityText::parse(text + "x", 2).status()));
  std::string huge = text;
  huge[sizeof(uint64_t) + offsetof(VaultSeal, text_bytes) + 7] = '\x7f';
  EXPECT_TRUE(absl::IsDataLoss(ParityText::parse(huge, 2).status()));
}

}  // namespace
}  // namespace keepstep::state
