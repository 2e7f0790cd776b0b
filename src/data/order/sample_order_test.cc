#include "data/order/sample_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <vector>

namespace keepstep::data {
namespace {

constexpr uint64_t kSeed = 1234;

std::vector<uint64_t> epoch_of(uint64_t seed, uint64_t epoch, uint64_t size) {
  std::vector<uint64_t> samples(size);
  samples_at(seed, epoch * size, size, size, samples.data());
  return samples;
}

TEST(SampleOrder, every_epoch_has_each_sample_exactly_once) {
  for (uint64_t size = 1; size <= 2000; ++size) {
    for (const uint64_t epoch : {0, 1, 7}) {
      std::vector<uint64_t> samples = epoch_of(kSeed, epoch, size);
      std::sort(samples.begin(), samples.end());
      for (uint64_t i = 0; i < size; ++i) {
        ASSERT_EQ(samples[i], i) << "size " << size << ", epoch " << epoch;
      }
    }
  }
}

TEST(SampleOrder, no_sample_of_a_large_data_set_comes_twice) {
  for (const uint64_t size : {uint64_t{1'000'000'000}, (uint64_t{1} << 40) + 1, std::numeric_limits<uint64_t>::max()}) {
    std::unordered_set<uint64_t> seen;
    constexpr uint64_t kCount = 200'000;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t sample = sample_at(kSeed, i * (size / kCount), size);
      ASSERT_LT(sample, size);
      ASSERT_TRUE(seen.insert(sample).second) << "sample " << sample << " of " << size << " came twice";
    }
  }
}

TEST(SampleOrder, epochs_and_seeds_give_other_orders) {
  constexpr uint64_t kSize = 10'000;
  const std::vector<uint64_t> first = epoch_of(kSeed, 0, kSize);
  for (const auto& [seed, epoch] :
       std::vector<std::pair<uint64_t, uint64_t>>{{kSeed, 1}, {kSeed, 2}, {kSeed + 1, 0}, {kSeed - 1, 1}, {0, 0}}) {
    const std::vector<uint64_t> other = epoch_of(seed, epoch, kSize);
    int equal = 0;
    for (uint64_t i = 0; i < kSize; ++i) {
      equal += first[i] == other[i] ? 1 : 0;
    }
    EXPECT_LE(equal, 10) << "seed " << seed << ", epoch " << epoch;  // chance gives one
  }
}

TEST(SampleOrder, many_at_once_are_the_same_as_one_by_one_across_epochs) {
  constexpr uint64_t kSize = 97;
  std::vector<uint64_t> samples(500);
  samples_at(kSeed, 60, samples.size(), kSize, samples.data());
  for (uint64_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i], sample_at(kSeed, 60 + i, kSize));
  }
  samples_at(kSeed, 60, 0, kSize, nullptr);
}

// Neighbors in the order are as far apart, and as unrelated, as in a random shuffle.
TEST(SampleOrder, the_order_looks_shuffled) {
  for (const uint64_t size : {uint64_t{10'000}, uint64_t{16'384}, uint64_t{100'003}}) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      const std::vector<uint64_t> samples = epoch_of(kSeed, epoch, size);
      const double n = static_cast<double>(size);
      double distance = 0;
      double serial = 0;
      double with_place = 0;
      int fixed = 0;
      for (uint64_t i = 0; i < size; ++i) {
        const double here = static_cast<double>(samples[i]) / n - 0.5;
        const double next = static_cast<double>(samples[(i + 1) % size]) / n - 0.5;
        distance += std::abs(next - here);
        serial += here * next;
        with_place += here * (static_cast<double>(i) / n - 0.5);
        fixed += samples[i] == i ? 1 : 0;
      }
      // Five standard deviations of a mean of n products of two uniform variables (each 1/12).
      const double bound = 5.0 / (12.0 * std::sqrt(n));
      EXPECT_NEAR(distance / n, 1.0 / 3.0, 5 * 0.25 / std::sqrt(n)) << size;
      EXPECT_NEAR(serial / n, 0.0, bound) << size;
      EXPECT_NEAR(with_place / n, 0.0, bound) << size;
      EXPECT_LE(fixed, 10) << size;
    }
  }
}

// With 3 samples, each of the 6 orders should occur about equally often over epochs.
TEST(SampleOrder, small_data_sets_take_all_orders) {
  std::vector<int> counts(27);
  constexpr int kEpochs = 6000;
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<uint64_t> order = epoch_of(kSeed, epoch, 3);
    ++counts[order[0] * 9 + order[1] * 3 + order[2]];
  }
  for (const int index : {5, 7, 11, 15, 19, 21}) {
    EXPECT_NEAR(counts[index], kEpochs / 6, 200);
  }
}

// A restarted job must see the same order forever: these values never change. They were computed by a program in
// another language, written from the header's text.
TEST(SampleOrder, golden_values) {
  using ::testing::ElementsAre;
  EXPECT_THAT(epoch_of(0, 0, 10), ElementsAre(0, 2, 3, 5, 7, 8, 4, 1, 9, 6));
  EXPECT_THAT(epoch_of(0, 1, 10), ElementsAre(1, 6, 3, 8, 5, 7, 0, 9, 4, 2));
  std::vector<uint64_t> samples(6);
  samples_at(1234, 1'000'000'000'000, samples.size(), 1'000'000'000, samples.data());
  EXPECT_THAT(samples, ElementsAre(345293273, 901912164, 810811516, 349938747, 581671397, 234106471));
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(sample_at(kMax, kMax - 1, kMax), 13851470944895747588u);
  EXPECT_EQ(sample_at(kMax, kMax, kMax), 5927206449758868470u);
}

}  // namespace
}  // namespace keepstep::data
