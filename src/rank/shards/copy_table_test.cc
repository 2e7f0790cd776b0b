#include "rank/shards/copy_table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace keepstep::rank {
namespace {

// What the all_reduce makes of two.
CopyTable both(CopyTable one, CopyTable other) {
  std::transform(one.data(), one.data() + one.size(), other.data(), one.data(),
                 [](int32_t left, int32_t right) { return std::min(left, right); });
  return one;
}

TEST(CopyTableTest, the_lowest_rank_that_can_gives_and_each_says_only_what_it_needs) {
  CopyTable zero(4);
  zero.set_needs(0);
  CopyTable two(4);
  two.set_gives(0, 2);
  two.set_gives(3, 2);
  CopyTable three(4);
  three.set_gives(0, 3);
  three.set_needs(3);
  const CopyTable table = both(both(zero, three), two);
  EXPECT_TRUE(table.needs(0));
  EXPECT_FALSE(table.needs(1));
  EXPECT_FALSE(table.needs(2));
  EXPECT_TRUE(table.needs(3));
  EXPECT_EQ(table.giver(0), 2u);
  EXPECT_EQ(table.giver(1), std::nullopt);
  EXPECT_EQ(table.giver(3), 2u);
  EXPECT_EQ(table, both(two, both(three, zero)));
}

TEST(CopyTableTest, a_shard_of_a_larger_world_is_passed_over) {
  CopyTable table(2);
  table.set_gives(2, 1);
  EXPECT_EQ(table, CopyTable(2));
}

}  // namespace
}  // namespace keepstep::rank
