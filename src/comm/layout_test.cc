// How much memory the ranks of a node share, and that nothing in it overlaps.

#include "comm/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace keepstep::comm {
namespace {

CommConfig of_nodes(uint32_t nodes, uint32_t ranks_per_node) {
  return {.max_world = nodes * ranks_per_node, .max_local = ranks_per_node};
}

TEST(Layout, what_a_node_shares_grows_at_most_in_a_line_with_the_world) {
  for (const auto bytes : {arena_bytes, generation_bytes}) {
    const size_t small = bytes(of_nodes(32, 8));
    const size_t twice = bytes(of_nodes(64, 8));
    const size_t four_times = bytes(of_nodes(128, 8));
    EXPECT_EQ(four_times - twice, 2 * (twice - small));
  }
  // One more rank on another node costs one entry in each group's list of members, and nothing else.
  const size_t more_ranks = 8 * 128;
  EXPECT_EQ(generation_bytes(of_nodes(256, 8)) - generation_bytes(of_nodes(128, 8)),
            CommConfig().groups * more_ranks * sizeof(uint32_t));
  EXPECT_EQ(arena_bytes(of_nodes(256, 8)), arena_bytes(of_nodes(128, 8)));
}

TEST(Layout, what_lies_in_a_generations_region_never_overlaps) {
  const CommConfig config{.max_world = 50, .max_local = 3, .groups = 4};
  const Layout layout(config);
  std::vector<std::byte> memory(layout.generation_bytes() + kCacheLine);
  auto* const base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + kCacheLine - 1) /
                                                  kCacheLine * kCacheLine);
  std::vector<std::pair<const void*, size_t>> parts = {{&layout.header(base), sizeof(Header)}};
  for (uint32_t group = 0; group < config.groups; ++group) {
    parts.emplace_back(&layout.group(base, group), sizeof(GroupBlock));
    parts.emplace_back(layout.members(base, group), config.max_world * sizeof(uint32_t));
    parts.emplace_back(layout.lines(base, group), config.max_local * sizeof(RankLine));
  }
  for (uint32_t from = 0; from < config.max_local; ++from) {
    parts.emplace_back(&layout.bell(base, from), sizeof(Bell));
    for (uint32_t to = 0; to < config.max_local; ++to) {
      parts.emplace_back(&layout.pair(base, from, to), sizeof(PairBlock));
    }
  }
  std::sort(parts.begin(), parts.end());
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    EXPECT_LE(static_cast<const std::byte*>(parts[i].first) + parts[i].second, parts[i + 1].first);
  }
  EXPECT_LE(static_cast<const std::byte*>(parts.back().first) + parts.back().second, base + layout.generation_bytes());
}

TEST(Layout, a_node_that_may_hold_all_ranks_has_a_ring_and_a_pair_for_each) {
  const CommConfig all{.max_world = 8};
  const CommConfig same{.max_world = 8, .max_local = 8};
  EXPECT_EQ(arena_bytes(all), arena_bytes(same));
  EXPECT_EQ(generation_bytes(all), generation_bytes(same));
  EXPECT_EQ(Layout(all).fingerprint(8), Layout(same).fingerprint(8));
}

}  // namespace
}  // namespace keepstep::comm
