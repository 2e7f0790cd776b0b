#include "brain/copies/memory_versions.h"

#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

constexpr Sharding kTwo{1, 2};

Holding copy(NodeId node, Version version, Rank rank, uint64_t bytes = 10, int64_t age_ns = 5) {
  return {node, 1, version, rank, bytes, age_ns};
}

Holding parity(NodeId node, Version version, ParityBlock block) { return {node, 1, version, std::move(block), 10, 5}; }

TEST(MemoryVersions, AVersionIsCompleteWhenEachShardHasACopy) {
  const std::vector<Holding> holdings = {copy(0, 7, 0, 10, 90), copy(1, 7, 0), copy(1, 7, 1, 20),
                                         copy(0, 8, 0),         copy(1, 8, 1), copy(0, 8, 1)};
  const auto found = versions_in_memory(holdings, {{kTwo}});
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0], (MemoryVersion{8, kTwo, {}, {0, 1}, 20, 30, 1, 0, 5}));
  EXPECT_EQ(found[1], (MemoryVersion{7, kTwo, {}, {0, 1}, 30, 40, 1, 0, 90}));
}

TEST(MemoryVersions, AShardWithoutACopyIsNamed) {
  const std::vector<Holding> holdings = {copy(0, 8, 1), copy(2, 8, 1)};
  const auto found = versions_in_memory(holdings, {{kTwo}});
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].lost, (std::vector<Rank>{0}));
  EXPECT_EQ(found[0].copies, 0);
  EXPECT_EQ(found[0].bytes, 10);
}

TEST(MemoryVersions, TwoCopiesOnOneNodeCountOnce) {
  const auto found = versions_in_memory(std::vector{copy(0, 8, 0), copy(0, 8, 0), copy(1, 8, 1)}, {{kTwo}});
  EXPECT_EQ(found.at(0).copies, 1);
}

TEST(MemoryVersions, AShardThatParityGivesBackIsNotLost) {
  const std::vector<Holding> holdings = {copy(1, 8, 1), parity(2, 8, {{0, 1}, 0}), parity(3, 8, {{0, 1}, 1})};
  const auto found = versions_in_memory(holdings, {{kTwo}});
  ASSERT_EQ(found.size(), 1);
  EXPECT_TRUE(found[0].lost.empty());
  EXPECT_EQ(found[0].copies, 0);
  EXPECT_EQ(found[0].parity, 2);
  EXPECT_EQ(found[0].nodes, (std::vector<NodeId>{1, 2, 3}));
  const auto less = versions_in_memory(std::vector{parity(2, 8, {{0, 1}, 0})}, {{kTwo}});
  EXPECT_EQ(less.at(0).lost, (std::vector<Rank>{0, 1}));
}

TEST(MemoryVersions, DivisionsAreToldApartAndWhatBelongsToNoneIsLeftOut) {
  std::vector<Holding> holdings = {copy(0, 8, 0), copy(0, 8, 1), copy(0, 8, 2)};
  holdings.push_back({0, 2, 8, Rank{0}, 30, 5});
  holdings.push_back({0, 3, 9, Rank{0}, 30, 5});
  const auto found = versions_in_memory(holdings, std::vector<Sharding>{kTwo, {2, 1}});
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].sharding.number, 2);
  EXPECT_EQ(found[0].bytes, 30);
  EXPECT_EQ(found[1].sharding, kTwo);
  EXPECT_EQ(found[1].held_bytes, 20);
  EXPECT_TRUE(versions_in_memory(holdings, {}).empty());
}

}  // namespace
}  // namespace keepstep::brain
