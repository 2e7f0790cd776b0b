#include "rank/hydrate/source_choice.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace keepstep::rank {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> ranks_without(uint32_t world, uint32_t first, uint32_t last) {
  std::vector<uint32_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::erase_if(ranks, [&](uint32_t rank) { return rank >= first && rank <= last; });
  return ranks;
}

TEST(SourceChoice, on_one_node_all_are_asked) {
  EXPECT_THAT(sources_for(1, {0, 2, 3}, {}), ElementsAre(0, 2, 3));
  EXPECT_THAT(sources_for(1, {0, 2, 3}, {5, 5, 5, 5}), ElementsAre(0, 2, 3));
}

TEST(SourceChoice, few_sources_elsewhere_are_all_asked) {
  EXPECT_THAT(sources_for(5, {0, 1, 2, 3, 4}, {0, 0, 1, 1, 2, 2}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(SourceChoice, targets_of_one_node_ask_eight_each_and_no_source_serves_more_than_it_must) {
  // 32 nodes of 8 ranks; node 7 is hydrated.
  std::vector<uint32_t> nodes(256);
  for (uint32_t rank = 0; rank < nodes.size(); ++rank) {
    nodes[rank] = rank / 8;
  }
  const std::vector<uint32_t> sources = ranks_without(256, 56, 63);
  std::map<uint32_t, int> served;
  for (uint32_t target = 56; target <= 63; ++target) {
    const auto chosen = sources_for(target, sources, nodes);
    EXPECT_EQ(chosen.size(), kMaxSourcesElsewhere);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    for (const uint32_t source : chosen) {
      EXPECT_NE(nodes[source], 7U);
      ++served[source];
    }
  }
  EXPECT_EQ(served.size(), 64U) << "eight targets ask eight each, none of them the same";
}

TEST(SourceChoice, sources_on_the_own_node_come_on_top_of_those_elsewhere) {
  std::vector<uint32_t> nodes(64);
  for (uint32_t rank = 0; rank < nodes.size(); ++rank) {
    nodes[rank] = rank / 4;
  }
  const auto chosen = sources_for(9, ranks_without(64, 9, 9), nodes);
  EXPECT_EQ(chosen.size(), 3 + kMaxSourcesElsewhere);
  for (const uint32_t near : {8U, 10U, 11U}) {
    EXPECT_EQ(std::count(chosen.begin(), chosen.end(), near), 1);
  }
}

TEST(SourceChoice, no_source_is_no_choice) { EXPECT_TRUE(sources_for(0, {}, {0, 1}).empty()); }

}  // namespace
}  // namespace keepstep::rank
