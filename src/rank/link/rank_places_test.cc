#include "rank/link/rank_places.h"

#include <gtest/gtest.h>

#include <string>

namespace keepstep::rank {
namespace {

using Table = std::vector<messages::TableEntry>;

TEST(RankPlacesTest, ranks_stand_in_the_order_of_the_entries_one_port_each) {
  const auto places =
      rank_places_from({{0, "10.0.0.7", 4000, 2, 0}, {3, "fd00::7", 5000, 1, 2}, {0, "10.0.0.7", 4000, 1, 2}}, 8);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(places->nodes, (std::vector<uint32_t>{0, 0, 3, 0}));
  EXPECT_EQ(places->addresses, (std::vector<SocketAddress>{
                                   {"10.0.0.7", 4000}, {"10.0.0.7", 4001}, {"fd00::7", 5002}, {"10.0.0.7", 4002}}));
}

TEST(RankPlacesTest, what_makes_no_table_is_refused_with_its_entry) {
  const std::vector<std::pair<Table, std::string>> cases = {
      {{}, "without entries"},
      {{{0, "10.0.0.7", 4000, 0, 0}}, "has 0 ranks"},
      {{{0, "10.0.0.7", 4000, 9, 0}}, "entry 0"},
      {{{0, "10.0.0.7", 4000, 4, 0}, {1, "10.0.0.8", 4000, 5, 0}}, "entry 1 of the rank table has 5 ranks after 4"},
      {{{0, "10.0.0.7", 4000, 0xffffffff, 0}}, "entry 0"},
      {{{0, "10.0.0.7", 0, 1, 0}}, "without a port"},
      {{{0, "10.0.0.7", 65535, 2, 0}}, "without a port"},
      {{{0, "10.0.0.7", 65000, 1, 1000}}, "without a port"},
      {{{0, "10.0.0.7", 0xffffffff, 1, 0xffffffff}}, "without a port"},
      {{{0, "node-b", 4000, 1, 0}}, "no numeric address"},
      {{{0, "", 4000, 1, 0}}, "no numeric address"},
  };
  for (const auto& [table, why] : cases) {
    const auto places = rank_places_from(table, 8);
    ASSERT_FALSE(places.ok()) << why;
    EXPECT_EQ(places.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(places.status().message()).find(why), std::string::npos) << places.status().message();
  }
}

TEST(RankPlacesTest, a_full_table_may_use_the_last_port) {
  const auto places = rank_places_from({{0, "127.0.0.1", 65528, 8, 0}}, 8);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(places->addresses.back().port, 65535);
}

}  // namespace
}  // namespace keepstep::rank
