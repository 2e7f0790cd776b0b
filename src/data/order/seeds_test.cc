#include "data/order/seeds.h"

#include <gtest/gtest.h>

#include <vector>

namespace keepstep::data {
namespace {

uint64_t mixed(const std::vector<uint64_t>& parts) { return mix_seed(parts); }

// Computed with Python's integers from the formula in the header.
TEST(SeedsTest, seeds_are_the_same_bits_for_ever) {
  EXPECT_EQ(mixed({}), 0u);
  EXPECT_EQ(mixed({0}), 0xe220'a839'7b1d'cdafu);
  EXPECT_EQ(mixed({0, 1, 2}), 0xf4f3'7357'1b7f'eb84u);
  EXPECT_EQ(mixed({2, 1, 0}), 0x90b9'6b4d'd23b'd6ebu);
  EXPECT_EQ(mixed({~uint64_t{0}, 118, 3}), 0xa266'96f4'c02a'1624u);
}

}  // namespace
}  // namespace keepstep::data
