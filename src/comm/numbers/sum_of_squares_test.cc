#include "comm/numbers/sum_of_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "comm/collectives/canonical_testing.h"

namespace keepstep::comm {
namespace {

// The header's sentence, with the tree from its definition.
double reference(const std::vector<double>& values) {
  std::vector<double> blocks;
  for (size_t begin = 0; begin < values.size(); begin += 4096) {
    volatile double lanes[8] = {};
    for (size_t i = begin; i < std::min(begin + 4096, values.size()); ++i) {
      lanes[(i - begin) % 8] = lanes[(i - begin) % 8] + values[i] * values[i];
    }
    blocks.push_back(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
  }
  const std::function<double(size_t, size_t)> sum = [&](size_t begin, size_t end) -> double {
    if (end - begin == 1) {
      return blocks[begin];
    }
    size_t left = 1;
    while (left * 2 < end - begin) {
      left *= 2;
    }
    return sum(begin, begin + left) + sum(begin + left, end);
  };
  return blocks.empty() ? 0.0 : sum(0, blocks.size());
}

TEST(SumOfSquares, follows_its_order_to_the_bit) {
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16, DataType::kFloat16}) {
    for (const size_t count : {0, 1, 7, 8, 9, 4095, 4096, 4097, 12'289, 50'000}) {
      const Leaf leaf = random_leaves(random, type, 1, count, 20)[0];
      std::vector<double> values;
      for (size_t i = 0; i < count; ++i) {
        values.push_back(element(leaf.data(), type, i));
      }
      EXPECT_EQ(sum_of_squares(leaf.data(), count, type), reference(values)) << name(type) << " " << count;
    }
  }
}

TEST(SumOfSquares, does_not_overflow_where_float32_would_and_keeps_what_is_no_number) {
  const std::vector<float> large(10, 1e30F);
  EXPECT_FLOAT_EQ(static_cast<float>(std::sqrt(sum_of_squares(large.data(), 10, DataType::kFloat32))),
                  1e30F * std::sqrt(10.F));
  const std::vector<float> bad = {1.0F, std::nanf("")};
  EXPECT_TRUE(std::isnan(sum_of_squares(bad.data(), 2, DataType::kFloat32)));
}

}  // namespace
}  // namespace keepstep::comm
