#include "rank/shards/copy_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace keepstep::rank {
namespace {

// What the all_reduce makes of two tables.
CopyTable both(CopyTable one, CopyTable other) {
  std::transform(one.data(), one.data() + one.size(), other.data(), one.data(),
                 [](int32_t left, int32_t right) { return std::min(left, right); });
  return one;
}

using Givers = std::vector<brain::Rank>;

TEST(CopyTableTest, the_lowest_and_the_highest_rank_that_can_give_are_known_to_all) {
  CopyTable zero(4, 4);
  zero.set_needs(0);
  CopyTable two(4, 4);
  two.set_gives(0, 2);
  two.set_gives(3, 2);
  CopyTable three(4, 4);
  three.set_gives(0, 3);
  three.set_needs(3);
  const CopyTable table = both(both(zero, three), two);
  EXPECT_TRUE(table.needs(0));
  EXPECT_FALSE(table.needs(1));
  EXPECT_FALSE(table.needs(2));
  EXPECT_TRUE(table.needs(3));
  EXPECT_EQ(table.givers(0), (Givers{2, 3}));
  EXPECT_EQ(table.givers(1), Givers{});
  EXPECT_EQ(table.givers(3), Givers{2});
  EXPECT_EQ(table.giver(0), 2u);
  EXPECT_EQ(table.giver(1), std::nullopt);
  EXPECT_EQ(table.giver(3), 2u);
  EXPECT_EQ(table, both(two, both(three, zero)));
}

TEST(CopyTableTest, a_shard_of_a_larger_world_is_passed_over) {
  CopyTable table(2, 2);
  table.set_gives(2, 1);
  EXPECT_EQ(table, CopyTable(2, 2));
}

TEST(CopyTableTest, there_may_be_more_shards_than_ranks_and_rank_0_gives_too) {
  CopyTable table(1, 3);
  table.set_gives(2, 0);
  table.set_needs(0);
  EXPECT_TRUE(table.needs(0));
  EXPECT_EQ(table.givers(1), Givers{});
  EXPECT_EQ(table.givers(2), Givers{0});
}

}  // namespace
}  // namespace keepstep::rank
