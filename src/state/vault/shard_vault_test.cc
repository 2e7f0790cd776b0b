#include "state/vault/shard_vault.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

namespace keepstep::state {
namespace {

constexpr uint64_t kText = 1000;

struct Memory {
  Memory(brain::Rank rank, uint64_t data_bytes)
      : bytes(ShardVault::memory_bytes(data_bytes, kText)), memory(std::make_unique<std::byte[]>(bytes)) {
    ShardVault::initialize(memory.get(), rank, data_bytes, kText);
  }
  ShardVault vault() { return *ShardVault::open(memory.get(), bytes); }
  uint64_t bytes;
  std::unique_ptr<std::byte[]> memory;
};

struct Tensors {
  explicit Tensors(size_t count) : first(count), second(count / 3 + 1) { fill(0); }
  void fill(uint32_t from) {
    std::iota(first.begin(), first.end(), from);
    std::iota(second.begin(), second.end(), from + 7);
  }
  TensorSpace space() {
    return *TensorSpace::create({{first.data(), first.size() * 4}, {second.data(), second.size() * 4}});
  }
  uint64_t bytes() const { return (first.size() + second.size()) * 4; }
  std::vector<uint32_t> first, second;
};

bool never() { return false; }

TEST(ShardVault, KeepsTheTwoNewestVersionsWhole) {
  for (const size_t count : {1UL, 1000UL, 300000UL, 1UL << 20}) {
    Tensors tensors(count);
    Memory memory(3, tensors.bytes());
    ShardVault vault = memory.vault();
    HostCopy copy;
    EXPECT_EQ(vault.rank(), 3);
    EXPECT_TRUE(vault.versions().empty());
    for (brain::Version version = 0; version < 5; ++version) {
      tensors.fill(static_cast<uint32_t>(version) * 1000);
      ASSERT_TRUE(*vault.write(version, tensors.space(), copy, "text " + std::to_string(version), never));
    }
    EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{3, 4}));
    for (const brain::Version version : vault.versions()) {
      Tensors back(count);
      EXPECT_TRUE(vault.verify(version).ok());
      ASSERT_TRUE(vault.read(version, back.space(), copy).ok());
      tensors.fill(static_cast<uint32_t>(version) * 1000);
      EXPECT_EQ(back.first, tensors.first);
      EXPECT_EQ(back.second, tensors.second);
      EXPECT_EQ(*vault.text(version), "text " + std::to_string(version));
    }
  }
}

TEST(ShardVault, TheOlderVersionGoesHoweverFarApartTheyAre) {
  Tensors tensors(5000);
  HostCopy copy;
  for (const brain::Version every : {1, 2, 3, 4, 10}) {
    Memory memory(0, tensors.bytes());
    ShardVault vault = memory.vault();
    for (brain::Version version = every; version <= 5 * every; version += every) {
      tensors.fill(static_cast<uint32_t>(version));
      ASSERT_TRUE(*vault.write(version, tensors.space(), copy, std::to_string(version), never));
      if (version == every) {
        continue;
      }
      ASSERT_EQ(vault.versions(), (std::vector<brain::Version>{version - every, version}));
      for (const brain::Version each : vault.versions()) {
        Tensors back(5000);
        ASSERT_TRUE(vault.read(each, back.space(), copy).ok());
        EXPECT_EQ(back.first.front(), each);
        EXPECT_EQ(*vault.text(each), std::to_string(each));
      }
    }
    // The abandoned write took the older one's slot; the next write takes that slot, too, and the newest stays.
    EXPECT_FALSE(*vault.write(6 * every, tensors.space(), copy, "", [] { return true; }));
    EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{5 * every}));
    ASSERT_TRUE(*vault.write(5 * every + 1, tensors.space(), copy, "", never));
    EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{5 * every, 5 * every + 1}));
    // The same version again, in its own slot.
    ASSERT_TRUE(*vault.write(5 * every, tensors.space(), copy, "", never));
    EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{5 * every, 5 * every + 1}));
  }
}

TEST(ShardVault, AVersionThatWasNotFinishedIsNotThere) {
  Tensors tensors(5000);
  Memory memory(0, tensors.bytes());
  ShardVault vault = memory.vault();
  HostCopy copy;
  ASSERT_TRUE(*vault.write(1, tensors.space(), copy, "", never));
  ASSERT_TRUE(*vault.write(2, tensors.space(), copy, "", never));
  EXPECT_FALSE(*vault.write(3, tensors.space(), copy, "", [] { return true; }));
  EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{2}));
  EXPECT_TRUE(absl::IsNotFound(vault.read(1, tensors.space(), copy)));
  EXPECT_TRUE(absl::IsNotFound(vault.text(3).status()));
}

TEST(ShardVault, WhatDidNotHappenIsDropped) {
  Tensors tensors(10);
  Memory memory(0, tensors.bytes());
  ShardVault vault = memory.vault();
  HostCopy copy;
  ASSERT_TRUE(*vault.write(7, tensors.space(), copy, "", never));
  ASSERT_TRUE(*vault.write(8, tensors.space(), copy, "", never));
  vault.drop_beyond(7);
  EXPECT_EQ(vault.versions(), (std::vector<brain::Version>{7}));
}

TEST(ShardVault, AFlippedBitIsFound) {
  Tensors tensors(700000);
  Memory memory(0, tensors.bytes());
  ShardVault vault = memory.vault();
  HostCopy copy;
  ASSERT_TRUE(*vault.write(4, tensors.space(), copy, "hello", never));
  vault.data(4)[2000000] ^= std::byte{4};
  EXPECT_TRUE(absl::IsDataLoss(vault.verify(4)));
  EXPECT_TRUE(absl::IsDataLoss(vault.read(4, tensors.space(), copy)));
  vault.data(4)[2000000] ^= std::byte{4};
  EXPECT_TRUE(vault.verify(4).ok());
  vault.text_slot(4)[2] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(vault.verify(4)));
  EXPECT_TRUE(absl::IsDataLoss(vault.text(4).status()));
}

TEST(ShardVault, WhoOnlyLooksTellsCorruptFromOverwritten) {
  Tensors tensors(700000);
  Memory memory(0, tensors.bytes());
  ShardVault vault = memory.vault();
  HostCopy copy;
  ASSERT_TRUE(*vault.write(4, tensors.space(), copy, "hello", never));
  EXPECT_EQ(vault.check(4, never), VaultCheck::kGood);
  EXPECT_EQ(vault.check(6, never), VaultCheck::kOverwritten);
  EXPECT_EQ(vault.check(4, [] { return true; }), VaultCheck::kGivenUp);
  // While chunks are read, the writer takes that slot for the version after the next: first open, then whole.
  for (const bool finished : {false, true}) {
    Memory another(0, tensors.bytes());
    ShardVault written = another.vault();
    ASSERT_TRUE(*written.write(4, tensors.space(), copy, "hello", never));
    ASSERT_TRUE(*written.write(5, tensors.space(), copy, "hello", never));
    int chunks = 0;
    const auto overwrite = [&] {
      if (++chunks == 2) {
        EXPECT_EQ(*written.write(6, tensors.space(), copy, "hello", [&] { return !finished; }), finished);
      }
      return false;
    };
    EXPECT_EQ(written.check(4, overwrite), VaultCheck::kOverwritten) << finished;
    EXPECT_EQ(written.check(5, never), VaultCheck::kGood);
  }
  vault.data(4)[2000000] ^= std::byte{4};
  EXPECT_EQ(vault.check(4, never), VaultCheck::kCorrupt);
  vault.data(4)[2000000] ^= std::byte{4};
  vault.text_slot(4)[2] ^= std::byte{1};
  EXPECT_EQ(vault.check(4, never), VaultCheck::kCorrupt);
}

TEST(ShardVault, WhatArrivesInPiecesIsTheSame) {
  Tensors tensors(400000);
  Memory here(0, tensors.bytes());
  Memory there(0, tensors.bytes());
  ShardVault mine = here.vault();
  ShardVault theirs = there.vault();
  HostCopy copy;
  ASSERT_TRUE(*mine.write(9, tensors.space(), copy, "values", never));
  theirs.begin(9);
  std::copy(mine.data(9).begin(), mine.data(9).end(), theirs.data(9).begin());
  std::copy_n(mine.text_slot(9).begin(), 6, theirs.text_slot(9).begin());
  theirs.finish(*mine.seal_of(9));
  EXPECT_TRUE(theirs.verify(9).ok());
  EXPECT_EQ(*theirs.text(9), "values");
}

TEST(ShardVault, RefusesWhatDoesNotFit) {
  Tensors tensors(10);
  Memory memory(5, tensors.bytes());
  ShardVault vault = memory.vault();
  HostCopy copy;
  Tensors others(11);
  EXPECT_TRUE(absl::IsInvalidArgument(vault.write(0, others.space(), copy, "", never).status()));
  EXPECT_TRUE(
      absl::IsResourceExhausted(vault.write(0, tensors.space(), copy, std::string(kText + 1, 'x'), never).status()));
  EXPECT_FALSE(vault.has(0));
  EXPECT_TRUE(absl::IsInvalidArgument(ShardVault::open(memory.memory.get(), memory.bytes - 1).status()));
  memory.memory[0] ^= std::byte{1};
  EXPECT_TRUE(absl::IsInvalidArgument(ShardVault::open(memory.memory.get(), memory.bytes).status()));
}

}  // namespace
}  // namespace keepstep::state
