#include "brain/table/rank_table.h"

#include <gtest/gtest.h>

#include <random>

#include "brain/table/rank_table_testing.h"

namespace keepstep::brain {
namespace {

using Entry = RankTable::Entry;
using testing_tables::random_entries;
using testing_tables::random_entry;

TEST(RankTable, a_ranks_endpoint_follows_from_its_nodes_entry_and_its_local_rank) {
  const auto table = RankTable::make({{7, 8, 0, {ipv4(10, 0, 0, 7), 20000}},
                                      {3, 2, 4, {ipv4(10, 0, 0, 3), 30000}},
                                      {9, 1, 0, {ipv4(10, 0, 0, 9), 0}}});
  ASSERT_TRUE(table.has_value());
  EXPECT_EQ(table->world_size(), 11u);
  EXPECT_EQ(table->locate(0), (RankTable::Location{7, 0, ipv4(10, 0, 0, 7), 20000}));
  EXPECT_EQ(table->locate(7), (RankTable::Location{7, 7, ipv4(10, 0, 0, 7), 20007}));
  EXPECT_EQ(table->locate(9), (RankTable::Location{3, 5, ipv4(10, 0, 0, 3), 30005}));
  EXPECT_EQ(table->locate(10), (RankTable::Location{9, 0, ipv4(10, 0, 0, 9), 0})) << "no port base, no port";
}

TEST(RankTable, entries_that_make_no_table_are_refused_by_name) {
  std::string why;
  EXPECT_FALSE(RankTable::make({{5, 0, 0, {}}}, &why).has_value());
  EXPECT_EQ(why, "entry 0 (node 5) of a rank table is wrong: it has no ranks");
  EXPECT_FALSE(RankTable::make({{5, 1, 0, {}}, {6, 8, 0, {ipv4(10, 0, 0, 1), 65530}}}, &why).has_value());
  EXPECT_EQ(why,
            "entry 1 (node 6) of a rank table is wrong: local rank 7 above port base 65530 has no port below 65536");
  EXPECT_FALSE(RankTable::make(std::vector<Entry>(17, {1, 65536, 0, {}}), &why).has_value());
  EXPECT_EQ(why, "a rank table has more than 1048576 ranks");
  EXPECT_TRUE(RankTable::make(std::vector<Entry>(16, {1, 65536, 0, {}})).has_value());
  EXPECT_FALSE(RankTable::make(std::vector<Entry>(65536, {1, 1, 0, {}}), &why).has_value());
  EXPECT_EQ(why, "a rank table has more than 65535 entries");
}

TEST(RankTable, places_agree_with_walking_over_the_entries) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto table = RankTable::make(random_entries(random, 40));
    ASSERT_TRUE(table.has_value());
    Rank rank = 0;
    for (const Entry& entry : table->entries()) {
      for (uint32_t i = 0; i < entry.ranks; ++i, ++rank) {
        const RankTable::Location location = table->locate(rank);
        ASSERT_EQ(location.node, entry.node);
        ASSERT_EQ(location.local_rank, entry.first_local + i);
        ASSERT_EQ(location.address, entry.endpoint.address);
        ASSERT_EQ(location.port, entry.endpoint.port_base == 0 ? 0 : entry.endpoint.port_base + location.local_rank);
      }
    }
    ASSERT_EQ(rank, table->world_size());
  }
}

TEST(RankTableDelta, nothing_changed_is_nothing_to_send) {
  const auto table = RankTable::make({{1, 8, 0, {}}, {2, 8, 0, {}}});
  EXPECT_EQ(difference(*table, *table), RankTableDelta{});
  EXPECT_EQ(apply(*table, {}), *table);
}

TEST(RankTableDelta, costs_what_changed_not_the_table) {
  std::mt19937_64 random(7);
  const std::vector<Entry> entries(1000, random_entry(random));
  std::vector<Entry> replaced = entries;
  replaced[17] = random_entry(random);
  replaced[900] = random_entry(random);
  std::vector<Entry> shrunk = entries;
  shrunk[500].node += 1;
  const RankTable before = *RankTable::make(shrunk);
  shrunk.erase(shrunk.begin() + 500);
  const auto inserted = [&](const RankTable& from, const std::vector<Entry>& to) {
    const RankTableDelta delta = difference(from, *RankTable::make(to));
    size_t count = 0;
    for (const auto& splice : delta.splices) {
      count += splice.inserted.size();
    }
    return std::pair(delta.splices.size(), count);
  };
  EXPECT_EQ(inserted(*RankTable::make(entries), replaced), std::pair(size_t{2}, size_t{2}));
  EXPECT_EQ(inserted(before, shrunk), std::pair(size_t{1}, size_t{0}));
  std::vector<Entry> grown = entries;
  grown.push_back(random_entry(random));
  EXPECT_EQ(inserted(*RankTable::make(entries), grown), std::pair(size_t{1}, size_t{1}));
}

TEST(RankTableDelta, leads_from_any_table_to_any_other) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const RankTable base = *RankTable::make(random_entries(random, 12));
    const RankTable target = random() % 2 == 0 ? *RankTable::make(random_entries(random, 12))
                                               : *RankTable::make(testing_tables::changed(random, base.entries()));
    ASSERT_EQ(apply(base, difference(base, target)), target);
  }
}

TEST(RankTableDelta, splices_that_do_not_fit_are_refused) {
  const RankTable base = *RankTable::make({{1, 8, 0, {}}, {2, 8, 0, {}}});
  std::string why;
  EXPECT_FALSE(apply(base, {{{3, 0, {}}}}, &why).has_value());
  EXPECT_EQ(why, "a splice of 0 entries at 3 does not fit a rank table of 2");
  EXPECT_FALSE(apply(base, {{{1, 2, {}}}}).has_value());
  EXPECT_FALSE(apply(base, {{{0, 2, {}}, {1, 0, {}}}}).has_value()) << "they overlap";
  EXPECT_FALSE(apply(base, {{{0, 1, {{1, 0, 0, {}}}}}}).has_value()) << "an entry without ranks";
}

}  // namespace
}  // namespace keepstep::brain
