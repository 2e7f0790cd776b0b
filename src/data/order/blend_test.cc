#include "data/order/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace keepstep::data {
namespace {

// Every prefix of two periods has each source's share to within one sample, and each source's samples in order.
void expect_exact(const std::vector<uint64_t>& counts) {
  const auto blend = Blend::make(counts);
  ASSERT_TRUE(blend.ok()) << blend.status();
  const uint64_t period = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  ASSERT_EQ(blend->period(), period);
  std::vector<uint64_t> seen(counts.size());
  for (uint64_t n = 0; n < 2 * period; ++n) {
    const Blend::Sample sample = blend->at(n);
    ASSERT_EQ(sample.number, seen[sample.source]) << n;
    ++seen[sample.source];
    // Each n checks every seventh source; all of them if there are few.
    for (size_t s = 0; s < counts.size() && (counts.size() < 10 || s % 7 == n % 7); ++s) {
      const double exact = static_cast<double>(n + 1) * static_cast<double>(counts[s]) / static_cast<double>(period);
      ASSERT_LT(std::abs(static_cast<double>(seen[s]) - exact), 1.0) << "source " << s << " after " << n + 1;
    }
  }
  for (size_t s = 0; s < counts.size(); ++s) {
    EXPECT_EQ(seen[s], 2 * counts[s]);
  }
}

TEST(Blend, keeps_every_share_at_every_prefix) {
  expect_exact({7, 3});
  expect_exact({1});
  expect_exact({1, 1, 1});
  expect_exact({997, 1, 1, 1});
  expect_exact({34, 33, 33});
}

TEST(Blend, keeps_random_shares) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<uint64_t> counts(1 + random() % 40);
    for (uint64_t& count : counts) {
      count = 1 + random() % (random() % 4 == 0 ? 300 : 5);
    }
    expect_exact(counts);
  }
}

TEST(Blend, knows_any_position_at_once) {
  const auto blend = Blend::make(std::vector<uint64_t>{7, 3});
  const uint64_t far = uint64_t{1} << 60;
  const Blend::Sample sample = blend->at(far * 10 + 4);
  EXPECT_EQ(sample.number, far * (sample.source == 0 ? 7 : 3) + blend->at(4).number);
}

TEST(Blend, refuses_what_is_no_blend) {
  EXPECT_FALSE(Blend::make({}).ok());
  EXPECT_FALSE(Blend::make(std::vector<uint64_t>{1, 0}).ok());
  EXPECT_FALSE(Blend::make(std::vector<uint64_t>{Blend::kMaxPeriod, 1}).ok());
  EXPECT_FALSE(Blend::make(std::vector<uint64_t>{~uint64_t{0}, 2}).ok());
}

TEST(BlendCounts, share_a_period) {
  EXPECT_EQ(counts_of(std::vector<double>{.7, .3}, 10).value(), (std::vector<uint64_t>{7, 3}));
  EXPECT_EQ(counts_of(std::vector<double>{1, 1, 1}, 10).value(), (std::vector<uint64_t>{4, 3, 3}));
  EXPECT_EQ(counts_of(std::vector<double>{1e9, 1e-9}, 1000).value(), (std::vector<uint64_t>{999, 1}));
  EXPECT_FALSE(counts_of(std::vector<double>{1, 0}, 10).ok());
  EXPECT_FALSE(counts_of(std::vector<double>{1, NAN}, 10).ok());
  EXPECT_FALSE(counts_of(std::vector<double>{1, INFINITY}, 10).ok());
  EXPECT_FALSE(counts_of(std::vector<double>{}, 10).ok());
  EXPECT_FALSE(counts_of(std::vector<double>{1, 1}, 1).ok());
}

}  // namespace
}  // namespace keepstep::data
