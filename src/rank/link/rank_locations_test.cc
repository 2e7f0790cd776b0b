#include "rank/link/rank_locations.h"

#include <gtest/gtest.h>

#include <string>

namespace keepstep::rank {
namespace {

using Table = std::vector<messages::TableEntry>;

TEST(RankLocationsTest, ranks_stand_in_the_order_of_the_entries_one_port_each) {
  const auto locations =
      rank_locations_from({{0, "10.0.0.7", 4000, 2, 0}, {3, "fd00::7", 5000, 1, 2}, {0, "10.0.0.7", 4000, 1, 2}}, 8);
  ASSERT_TRUE(locations.ok()) << locations.status();
  EXPECT_EQ(locations->nodes, (std::vector<uint32_t>{0, 0, 3, 0}));
  EXPECT_EQ(locations->addresses, (std::vector<SocketAddress>{
                                      {"10.0.0.7", 4000}, {"10.0.0.7", 4001}, {"fd00::7", 5002}, {"10.0.0.7", 4002}}));
}

TEST(RankLocationsTest, what_makes_no_table_is_refused_with_its_entry) {
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
    const auto locations = rank_locations_from(table, 8);
    ASSERT_FALSE(locations.ok()) << why;
    EXPECT_EQ(locations.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(locations.status().message()).find(why), std::string::npos) << locations.status().message();
  }
}

TEST(RankLocationsTest, a_full_table_may_use_the_last_port) {
  const auto locations = rank_locations_from({{0, "127.0.0.1", 65528, 8, 0}}, 8);
  ASSERT_TRUE(locations.ok()) << locations.status();
  EXPECT_EQ(locations->addresses.back().port, 65535);
}

}  // namespace
}  // namespace keepstep::rank
