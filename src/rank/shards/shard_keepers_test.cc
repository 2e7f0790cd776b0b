#include "rank/shards/shard_keepers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace keepstep::rank {
namespace {

using Ranks = std::vector<brain::Rank>;

TEST(ShardKeepers, RanksOfOtherNodesKeepEachOthersCopies) {
  const ShardKeepers two({0, 0, 5, 5, 3, 3}, {.copies = 2});
  EXPECT_EQ(two.of(0).keepers, (Ranks{2}));
  EXPECT_EQ(two.of(2).kept, (Ranks{0}));
  const ShardKeepers three({0, 0, 5, 5, 3, 3}, {.copies = 3});
  EXPECT_EQ(three.of(0).keepers, (Ranks{2, 4}));
  EXPECT_EQ(three.of(0).kept, (Ranks{2, 4}));
}

TEST(ShardKeepers, FewerNodesThanCopiesHoldOneEach) {
  EXPECT_EQ(ShardKeepers({0, 1}, {.copies = 3}).of(0).keepers, (Ranks{1}));
}

TEST(ShardKeepers, OneNodeOrOneCopyHasNone) {
  EXPECT_TRUE(ShardKeepers({}, {.copies = 2}).of(3).keepers.empty());
  EXPECT_TRUE(ShardKeepers({7, 7}, {.copies = 2}).of(0).keepers.empty());
  EXPECT_TRUE(ShardKeepers({0, 1}, {.copies = 1}).of(0).keepers.empty());
  EXPECT_TRUE(ShardKeepers({0, 1}, {.copies = 1}).of(0).kept.empty());
  EXPECT_TRUE(ShardKeepers({7, 7}, {.data = 2, .parity = 2}).of(0).parity_keepers.empty());
  EXPECT_EQ(ShardKeepers({7, 7}, {.data = 2, .parity = 2}).shortfall(), "");
}

TEST(ShardKeepers, NoTwoCopiesOnOneNode) {
  const std::vector<uint32_t> nodes = {0, 0, 0, 1, 2, 2, 3};
  for (uint32_t copies = 1; copies < 7; ++copies) {
    const ShardKeepers keepers(nodes, {.copies = copies});
    for (brain::Rank rank = 0; rank < nodes.size(); ++rank) {
      std::set<uint32_t> on = {nodes[rank]};
      for (const brain::Rank keeper : keepers.of(rank).keepers) {
        EXPECT_TRUE(on.insert(nodes[keeper]).second) << "rank " << rank;
        const Ranks kept = keepers.of(keeper).kept;
        EXPECT_NE(std::find(kept.begin(), kept.end(), rank), kept.end());
      }
      EXPECT_EQ(on.size(), std::min<size_t>(copies, 4));
    }
  }
}

TEST(ShardKeepers, EachBlockOfAGroupIsOnANodeOfItsOwn) {
  const std::vector<uint32_t> nodes = {0, 0, 4, 4, 2, 2, 1, 1, 9};
  const ShardKeepers keepers(nodes, {.data = 3, .parity = 2});
  EXPECT_EQ(keepers.shortfall(), "");
  std::map<brain::ParityBlock, brain::Rank> kept;
  for (brain::Rank rank = 0; rank < nodes.size(); ++rank) {
    const ShardDuties duties = keepers.of(rank);
    EXPECT_TRUE(duties.keepers.empty() && duties.kept.empty());
    ASSERT_EQ(duties.parity_keepers.size(), 2u);
    for (const brain::ParityBlock& block : duties.parity_kept) {
      EXPECT_TRUE(kept.emplace(block, rank).second);
    }
  }
  for (const auto& [block, keeper] : kept) {
    std::set<uint32_t> on = {nodes[keeper]};
    for (const brain::Rank member : block.members) {
      EXPECT_TRUE(on.insert(nodes[member]).second);
      EXPECT_EQ(keepers.of(member).parity_keepers.at(block.row), keeper);
    }
  }
}

TEST(ShardKeepers, WithTooFewNodesParityBecomesWhatTheyCan) {
  const ShardKeepers four({0, 1, 2, 3}, {.data = 6, .parity = 2});
  EXPECT_EQ(four.of(0).parity_keepers.size(), 2u);
  EXPECT_EQ(four.shortfall(),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 4 nodes: parity=2+2 or copies=3 is "
            "possible. Taken: parity=2+2");
  const ShardKeepers three({0, 1, 2}, {.data = 6, .parity = 2});
  EXPECT_TRUE(three.of(0).parity_keepers.empty());
  EXPECT_EQ(three.of(0).keepers, (Ranks{1, 2}));
  EXPECT_EQ(three.shortfall(),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 3 nodes: copies=3 is possible. Taken: "
            "copies=3");
  EXPECT_EQ(ShardKeepers({0, 1}, {.data = 6, .parity = 2}).of(0).keepers, (Ranks{1}));
}

}  // namespace
}  // namespace keepstep::rank
