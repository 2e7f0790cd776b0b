#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/memory/shard_vaults_testing.h"

namespace keepstep::agent {
namespace {

// Writes as a worker would: through the descriptor.
void write(int fd, brain::Version version) {
  auto memory = SharedMemory::attach(Fd(dup(fd)), 4096);
  ASSERT_TRUE(memory.ok());
  auto vault = *state::ShardVault::open(memory->data(), memory->size());
  vault.begin(version);
  vault.finish({version, 0, 0, 0});
}

using Copies = std::vector<brain::ShardCopy>;

TEST(ShardVaults, HoldWhatRanksWrote) {
  TestVaults vaults;
  write(*vaults.of_size(1, 2U, 1000, 4096), 7);
  write(*vaults.of_size(1, 2U, 1000, 4096), 8);
  write(*vaults.of_size(1, 5U, 1, 4096), 8);
  EXPECT_EQ(vaults.copies(), (Copies{{2, 7, 1}, {2, 8, 1}, {5, 8, 1}}));
  EXPECT_EQ(vaults.ranks_at(1, 8), (std::vector<brain::Rank>{2, 5}));
  EXPECT_TRUE(vaults.holding({1, 2U}, 7).ok());
  EXPECT_TRUE(absl::IsNotFound(vaults.holding({1, 5U}, 7).status()));
  vaults.drop_beyond(7);
  EXPECT_EQ(vaults.copies(), (Copies{{2, 7, 1}}));
}

TEST(ShardVaults, HoldParityBlocksBesideShards) {
  const brain::ParityBlock block{{2, 5}, 0}, other{{2, 5}, 1};
  TestVaults vaults;
  write(*vaults.of_size(1, 2U, 1000, 4096), 7);
  write(*vaults.of_size(1, block, 1000, 4096), 7);
  write(*vaults.of_size(1, block, 1000, 4096), 8);
  write(*vaults.of_size(1, other, 1000, 4096), 8);
  EXPECT_EQ(vaults.copies(), (Copies{{2, 7, 1}}));
  EXPECT_EQ(vaults.parity(), (std::vector<brain::ParityCopy>{{block, 7}, {block, 8}, {other, 8}}));
  EXPECT_EQ(vaults.parity_at(8), (std::vector<brain::ParityBlock>{block, other}));
  EXPECT_NE(*vaults.holding({1, block}, 7), *vaults.holding({1, 2U}, 7));
  EXPECT_NE(*vaults.holding({1, block}, 8), *vaults.holding({1, other}, 8));
  EXPECT_EQ(vaults.holding({1, other}, 7).status().message(),
            "no copy of parity 1 of the shards of ranks 2, 5 at version 7 is here");
  vaults.drop_beyond(7);
  EXPECT_EQ(vaults.parity(), (std::vector<brain::ParityCopy>{{block, 7}}));
}

TEST(ShardVaults, AShardOfAnotherSizeDoesNotTakeTheOldOneAwayAtOnce) {
  TestVaults vaults;
  write(*vaults.of_size(1, 0U, 1000, 4096), 0);
  write(*vaults.of_size(1, 0U, 3000, 4096), 1);
  EXPECT_EQ(vaults.copies(), (Copies{{0, 0, 1}, {0, 1, 1}}));
  write(*vaults.of_size(1, 0U, 5000, 4096), 2);
  EXPECT_EQ(vaults.copies(), (Copies{{0, 1, 1}, {0, 2, 1}}));
}

TEST(ShardVaults, WhatAShardOutgrewCountsUntilItsNewMemoryHoldsTwoVersions) {
  TestVaults vaults;
  write(*vaults.of_size(1, 0U, 1000, 4096), 0);
  write(*vaults.of_size(1, 0U, 3000, 4096), 4);
  write(*vaults.of_size(1, 0U, 3000, 4096), 8);
  EXPECT_EQ(vaults.copies(), (Copies{{0, 4, 1}, {0, 8, 1}}));
  EXPECT_EQ(vaults.held().size(), 1);
  vaults.drop_beyond(4);  // one of the two did not happen
  EXPECT_EQ(vaults.copies(), (Copies{{0, 0, 1}, {0, 4, 1}}));
  write(*vaults.of_size(1, 0U, 3000, 4096), 8);
  write(*vaults.of_size(1, 0U, 1000, 4096), 12);  // the previous size again, in the previous memory
  EXPECT_EQ(vaults.copies(), (Copies{{0, 0, 1}, {0, 4, 1}, {0, 8, 1}, {0, 12, 1}}));
  write(*vaults.of_size(1, 0U, 1000, 4096), 16);
  EXPECT_EQ(vaults.copies(), (Copies{{0, 12, 1}, {0, 16, 1}}));
}

TEST(ShardVaults, TextThatGrowsALittleFindsTheSameMemory) {
  TestVaults vaults;
  const int first = *vaults.of_size(1, 0U, 1000, 8000);
  EXPECT_EQ(*vaults.of_size(1, 0U, 1000, 8200), first);
  EXPECT_NE(*vaults.of_size(1, 0U, 1000, 20000), first);
}

TEST(ShardVaults, WhatNobodyAsksForGoesAfterSomeGenerations) {
  TestVaults vaults;
  write(*vaults.of_size(1, 0U, 1000, 4096), 3);
  write(*vaults.of_size(1, 1U, 1000, 4096), 3);
  for (int generation = 0; generation < 3; ++generation) {
    vaults.drop_unused();
    EXPECT_EQ(vaults.ranks_at(1, 3).size(), 2);
    (void)vaults.of_size(1, 1U, 1000, 4096);
  }
  vaults.drop_unused();
  EXPECT_EQ(vaults.ranks_at(1, 3), (std::vector<brain::Rank>{1}));
  EXPECT_GE(vaults.bytes(), 2000);
}

TEST(ShardVaults, SaysHowMuchMemoryThereIsNot) {
  TestVaults vaults;
  const auto none = vaults.of_size(1, 4U, uint64_t{1} << 45, 4096);
  ASSERT_TRUE(absl::IsResourceExhausted(none.status())) << none.status();
  EXPECT_NE(none.status().message().find("rank 4"), std::string::npos);
}

TEST(ShardVaults, RefusesSizesThatNoShardHas) {
  TestVaults vaults;
  const uint64_t wraps = (uint64_t{1} << 63) - 4096;
  EXPECT_TRUE(absl::IsResourceExhausted(vaults.of_size(1, 4U, wraps, 4096).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(vaults.of_size(1, 4U, 4096, wraps).status()));
  EXPECT_TRUE(vaults.copies().empty());
}

}  // namespace
}  // namespace keepstep::agent
