#include "worker/shard_keepers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace keepstep::worker {
namespace {

using Ranks = std::vector<comm::Rank>;

TEST(ShardKeepers, RanksOfOtherNodesKeepEachOthersCopies) {
  const ShardKeepers two({0, 0, 5, 5, 3, 3}, 2);
  EXPECT_EQ(two.of(0), (Ranks{2}));
  EXPECT_EQ(two.kept_by(2), (Ranks{0}));
  const ShardKeepers three({0, 0, 5, 5, 3, 3}, 3);
  EXPECT_EQ(three.of(0), (Ranks{2, 4}));
  EXPECT_EQ(three.kept_by(0), (Ranks{2, 4}));
}

TEST(ShardKeepers, FewerNodesThanCopiesHoldOneEach) { EXPECT_EQ(ShardKeepers({0, 1}, 3).of(0), (Ranks{1})); }

TEST(ShardKeepers, OneNodeOrOneCopyHasNone) {
  EXPECT_TRUE(ShardKeepers({}, 2).of(3).empty());
  EXPECT_TRUE(ShardKeepers({7, 7}, 2).of(0).empty());
  EXPECT_TRUE(ShardKeepers({0, 1}, 1).of(0).empty());
  EXPECT_TRUE(ShardKeepers({0, 1}, 1).kept_by(0).empty());
}

TEST(ShardKeepers, NoTwoCopiesOnOneNode) {
  const std::vector<uint32_t> nodes = {0, 0, 0, 1, 2, 2, 3};
  for (uint32_t copies = 1; copies < 7; ++copies) {
    const ShardKeepers keepers(nodes, copies);
    for (comm::Rank rank = 0; rank < nodes.size(); ++rank) {
      std::set<uint32_t> on = {nodes[rank]};
      for (const comm::Rank keeper : keepers.of(rank)) {
        EXPECT_TRUE(on.insert(nodes[keeper]).second) << "rank " << rank;
        const Ranks kept = keepers.kept_by(keeper);
        EXPECT_NE(std::find(kept.begin(), kept.end(), rank), kept.end());
      }
      EXPECT_EQ(on.size(), std::min<size_t>(copies, 4));
    }
  }
}

}  // namespace
}  // namespace keepstep::worker
