#include "brain/membership/holdings.h"

#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

constexpr Identity kIdentity{1, 5};

SealedWord clean(Rank rank, Version version, uint32_t generation) {
  return {rank, rank, {{1, generation}, version + 1, Vote::kOpen, false}, {StateKind::kClean, version}};
}

TEST(Holdings, what_an_earlier_generation_saved_counts_up_to_where_a_later_one_began) {
  Holdings holdings;
  holdings.begin(1, 0, 2, true);
  holdings.begin(2, 10, 2, false);
  holdings.begin(3, 7, 2, false);  // 8, 9 and 10 are redone
  EXPECT_EQ(holdings.begun_below(8, 1), 7u);
  EXPECT_EQ(holdings.begun_below(9, 2), 7u);
  EXPECT_FALSE(holdings.begun_below(7, 1));
  EXPECT_FALSE(holdings.begun_below(9, 3));
}

TEST(Holdings, a_process_holds_what_it_was_sealed_with_last) {
  Holdings holdings;
  holdings.note(4, 9);
  EXPECT_TRUE(holdings.holds(4, 9));
  EXPECT_FALSE(holdings.holds(4, 8));
  holdings.note(4, std::nullopt);
  EXPECT_FALSE(holdings.holds(4, 9));
}

TEST(Holdings, copies_stand_in_for_the_dead_on_nodes_that_are_there_and_that_count) {
  Holdings holdings;
  holdings.shard();
  holdings.begin(5, 0, 2, true);
  const Verdict verdict{8, false, ""};
  EXPECT_FALSE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, false, nullptr, nullptr));
  holdings.note_copies(Sealed{.node = 3, .identity = kIdentity, .words = {}, .copies = {{1, 8, 5}}});
  const auto kept = holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, false, nullptr, nullptr);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->verdict.version, 8u);
  const std::set<NodeId> others = {4};
  EXPECT_FALSE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, false, &others, nullptr));
  holdings.lose(3);
  EXPECT_FALSE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, false, nullptr, nullptr));
}

TEST(Holdings, processes_are_no_sources_of_another_division) {
  Holdings holdings;
  holdings.shard();
  holdings.begin(5, 0, 1, true);
  const Verdict verdict{8, false, ""};
  EXPECT_TRUE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, false, nullptr, nullptr));
  EXPECT_FALSE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 5)}, true, nullptr, nullptr));
  EXPECT_FALSE(holdings.newest_kept(verdict, kIdentity, {clean(0, 8, 4)}, false, nullptr, nullptr))
      << "it did not enter this division";
}

}  // namespace
}  // namespace keepstep::brain
