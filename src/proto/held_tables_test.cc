#include "proto/held_tables.h"

#include <gtest/gtest.h>

#include <random>

#include "brain/table/rank_table_ledger.h"
#include "brain/table/rank_table_testing.h"
#include "proto/rank_table_wire.h"

namespace keepstep::proto {
namespace {

using brain::RankTable;
namespace tables = brain::testing_tables;

control::Prepare whole(uint32_t generation, const RankTable& table) {
  control::Prepare prepare;
  prepare.set_table(encode(brain::Identity{1, generation}, table));
  return prepare;
}

control::Prepare delta(uint32_t generation, uint32_t base, const RankTable& from, const RankTable& to) {
  control::Prepare prepare;
  prepare.set_delta(encode(IdentifiedDelta{{1, generation}, base, digest(to), difference(from, to)}));
  return prepare;
}

TEST(HeldTables, a_difference_to_a_table_that_is_not_held_drops_all_and_a_whole_one_mends_it) {
  const RankTable first = *RankTable::make({{1, 8, 0, {}}});
  const RankTable second = *RankTable::make({{2, 8, 0, {}}});
  HeldTables held;
  EXPECT_EQ(held.newest(), 0u);
  EXPECT_EQ(*held.take(whole(1, first), {1, 1}), first);
  EXPECT_EQ(*held.take(delta(2, 1, first, second), {1, 2}), second);
  EXPECT_EQ(held.newest(), 2u);

  const auto lost = held.take(delta(4, 3, first, second), {1, 4});
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(lost.status().message(), "a difference to the rank table of generation 3: it is not held");
  EXPECT_EQ(held.newest(), 0u);
  EXPECT_EQ(held.take(delta(4, 2, second, first), {1, 4}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*held.take(whole(4, second), {1, 4}), second);

  // The base has the right number but is a different table.
  const RankTable other = *RankTable::make({{9, 8, 0, {}}, {7, 8, 0, {}}});
  const RankTable next = *RankTable::make({{9, 8, 0, {}}, {8, 8, 0, {}}});
  EXPECT_EQ(held.take(delta(5, 4, other, next), {1, 5}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(HeldTables, a_table_of_another_generation_than_its_order_is_malformed) {
  HeldTables held;
  const auto taken = held.take(whole(1, RankTable()), {1, 2});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(taken.status().message(), "a rank table of term 1, generation 1 in an order of 1, 2");
  EXPECT_FALSE(held.take(control::Prepare(), {1, 2}).ok());
}

// The coordinator's ledger with agents that answer late, never, or forget all they held: an agent that is sent a
// generation has its table, or reports that it has not, and has it the next time.
TEST(HeldTables, together_with_the_ledger_every_agent_gets_every_table) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    brain::RankTableLedger ledger;
    std::map<brain::NodeId, HeldTables> agents;
    RankTable table = *RankTable::make(tables::random_entries(random, 10));
    for (uint32_t generation = 1; generation < 20; ++generation) {
      table = *RankTable::make(tables::changed(random, table.entries()));
      ledger.prepared(generation, table);
      for (brain::NodeId node = 0; node < 4; ++node) {
        if (random() % 8 == 0) {
          agents[node] = HeldTables();  // it reconnected, and the coordinator does not know yet
        }
        bool taken = false;
        for (int attempt = 0; attempt < 2 && !taken; ++attempt) {
          const uint32_t base = ledger.base_for(node);
          const auto got = agents[node].take(
              base == 0 ? whole(generation, table) : delta(generation, base, *ledger.table(base), table),
              {1, generation});
          taken = got.ok();
          if (taken) {
            ASSERT_EQ(*got, table);
          } else {
            ASSERT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
            ledger.held(node, 0);
          }
        }
        ASSERT_TRUE(taken);
        if (random() % 3 != 0) {
          ledger.held(node, agents[node].newest());
        }
      }
    }
  }
}

}  // namespace
}  // namespace keepstep::proto
