#include "rank/checks/bit_flip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

namespace keepstep::rank {
namespace {

using ::testing::HasSubstr;

struct Memory {
  std::vector<uint8_t> first = std::vector<uint8_t>(5);
  std::vector<uint8_t> second = std::vector<uint8_t>(3);
  std::vector<NamedMemory> pieces() {
    return {{"first", first.data(), first.size()}, {"none", nullptr, 0}, {"second", second.data(), second.size()}};
  }
  int bits() const {
    int count = 0;
    for (const auto* bytes : {&first, &second}) {
      for (const uint8_t byte : *bytes) {
        count += std::popcount(byte);
      }
    }
    return count;
  }
};

TEST(BitFlip, one_bit_changes_and_the_same_seed_and_step_change_it_back) {
  Memory memory;
  std::set<std::string> places;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const auto there = flip_bit(memory.pieces(), "parameter", seed, 7);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(memory.bits(), 1) << *there;
    const auto back = flip_bit(memory.pieces(), "parameter", seed, 7);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, *there);
    EXPECT_EQ(memory.bits(), 0) << *there;
    places.insert(*there);
  }
  EXPECT_EQ(places.size(), 8 * 8U) << "each of the bits is flipped by some seed";
}

TEST(BitFlip, without_memory_the_call_that_names_it_is_said) {
  EXPECT_THAT(flip_bit({}, "gradient", 1, 1).status().message(), HasSubstr("Trainer::compare"));
  EXPECT_THAT(flip_bit({}, "parameter", 1, 1).status().message(), HasSubstr("Trainer::protect"));
}

}  // namespace
}  // namespace keepstep::rank
