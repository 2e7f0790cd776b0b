#include "comm/numbers/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "comm/numbers/float16.h"

namespace keepstep::comm {
namespace {

template <class T>
std::vector<T> reduce(const std::vector<std::vector<T>>& sources, DataType type, ReduceOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) {
    pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  std::vector<T> result(sources[0].size());
  reduce_in_order(reinterpret_cast<std::byte*>(result.data()), pointers.data(), pointers.size(), result.size(), type,
                  op);
  return result;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Reduce, sums_are_taken_from_the_first_source_to_the_last) {
  const auto sum = reduce<float>({{1e8F}, {1.0F}, {-1e8F}, {1.0F}}, DataType::kFloat32, ReduceOp::kSum);
  EXPECT_EQ(sum[0], ((1e8F + 1.0F) + -1e8F) + 1.0F);
  EXPECT_NE(sum[0], 2.0F);
}

TEST(Reduce, bfloat16_is_rounded_once_not_at_every_addition) {
  const uint16_t one = bf16_from_float(1.0F);
  const uint16_t small = bf16_from_float(0.00390625F);  // half a last bit of 1.0: lost where every sum is rounded
  const auto sum = reduce<uint16_t>({{one}, {small}, {small}}, DataType::kBFloat16, ReduceOp::kSum);
  EXPECT_EQ(float_from_bf16(sum[0]), 1.0078125F);
}

TEST(Reduce, average_divides_the_sum) {
  EXPECT_EQ(reduce<float>({{1.0F}, {1.0F}, {2.0F}}, DataType::kFloat32, ReduceOp::kAverage)[0], 4.0F / 3.0F);
  EXPECT_EQ(reduce<double>({{1.0}, {1.0}, {2.0}}, DataType::kFloat64, ReduceOp::kAverage)[0], 4.0 / 3.0);
}

TEST(Reduce, average_of_integers_is_rounded_towards_zero) {
  EXPECT_EQ(reduce<int32_t>({{3, -3, 7}, {4, -4, -7}}, DataType::kInt32, ReduceOp::kAverage),
            (std::vector<int32_t>{3, -3, 0}));
  EXPECT_EQ(reduce<int8_t>({{-1}, {-1}, {-3}}, DataType::kInt8, ReduceOp::kAverage)[0], -1);
  EXPECT_EQ(reduce<uint8_t>({{200}, {50}, {1}}, DataType::kUint8, ReduceOp::kAverage)[0], 83);
  const int64_t big = int64_t{1} << 61;
  EXPECT_EQ(reduce<int64_t>({{big}, {big}, {1}}, DataType::kInt64, ReduceOp::kAverage)[0], (2 * big + 1) / 3);
}

TEST(Reduce, integers_wrap) {
  EXPECT_EQ(reduce<int8_t>({{100}, {100}}, DataType::kInt8, ReduceOp::kSum)[0], int8_t(-56));
  EXPECT_EQ(reduce<int16_t>({{-32768}, {-1}}, DataType::kInt16, ReduceOp::kSum)[0], 32767);
  EXPECT_EQ(reduce<int32_t>({{65536}, {65537}}, DataType::kInt32, ReduceOp::kProduct)[0], 65536);
  const int64_t big = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduce<int64_t>({{big}, {1}}, DataType::kInt64, ReduceOp::kSum)[0], std::numeric_limits<int64_t>::min());
}

TEST(Reduce, minimum_and_maximum_keep_a_nan_wherever_it_comes) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduce<float>({{kNan}, {1.0F}, {2.0F}}, DataType::kFloat32, op)[0]));
    EXPECT_TRUE(std::isnan(reduce<float>({{1.0F}, {kNan}, {2.0F}}, DataType::kFloat32, op)[0]));
    EXPECT_TRUE(std::isnan(reduce<float>({{1.0F}, {2.0F}, {kNan}}, DataType::kFloat32, op)[0]));
  }
  EXPECT_EQ(reduce<float>({{3.0F}, {-1.0F}, {2.0F}}, DataType::kFloat32, ReduceOp::kMin)[0], -1.0F);
  EXPECT_EQ(reduce<float>({{3.0F}, {-1.0F}, {2.0F}}, DataType::kFloat32, ReduceOp::kMax)[0], 3.0F);
}

TEST(Reduce, bool_is_logical_whatever_byte_stands_for_true) {
  const std::vector<std::vector<uint8_t>> sources = {{0, 0, 2, 255}, {0, 4, 0, 1}};
  EXPECT_EQ(reduce(sources, DataType::kBool, ReduceOp::kSum), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(reduce(sources, DataType::kBool, ReduceOp::kBitOr), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(reduce(sources, DataType::kBool, ReduceOp::kBitAnd), (std::vector<uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(reduce(sources, DataType::kBool, ReduceOp::kBitXor), (std::vector<uint8_t>{0, 1, 1, 0}));
  EXPECT_EQ(reduce(sources, DataType::kBool, ReduceOp::kProduct), (std::vector<uint8_t>{0, 0, 0, 1}));
}

TEST(Reduce, what_has_no_meaning_is_refused_with_the_way_out) {
  EXPECT_EQ(why_not(DataType::kFloat32, ReduceOp::kAverage), "");
  EXPECT_EQ(why_not(DataType::kInt32, ReduceOp::kAverage), "");
  EXPECT_EQ(why_not(DataType::kBool, ReduceOp::kAverage),
            "avg is not defined for bool; convert it, or use sum for \"or\"");
  EXPECT_NE(why_not(DataType::kFloat16, ReduceOp::kBitXor), "");
  EXPECT_EQ(why_not(DataType::kBool, ReduceOp::kBitXor), "");
}

// What a half means, by its definition.
double value_of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Float16, every_half_converts_to_its_value_and_back_to_its_bits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_f16(half);
    const bool special = (bits & 0x7c00) == 0x7c00;
    if (special && (bits & 0x3ff) != 0) {
      EXPECT_TRUE(std::isnan(value) && std::isnan(float_from_f16(f16_from_float(value)))) << bits;
    } else if (special) {
      EXPECT_TRUE(std::isinf(value) && f16_from_float(value) == half) << bits;
    } else {
      EXPECT_EQ(value, value_of_half(half)) << bits;
      EXPECT_EQ(f16_from_float(value), half) << bits;
    }
  }
}

TEST(Float16, rounding_is_to_the_nearest_and_ties_go_to_the_even_half) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {  // between each finite half and the next
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const float middle = static_cast<float>((value_of_half(low) + value_of_half(high)) / 2);  // exact
    const uint16_t even = (bits & 1) == 0 ? low : high;
    EXPECT_EQ(f16_from_float(middle), even) << bits;
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 0.0F)), low) << bits;
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 1e6F)), high) << bits;
    EXPECT_EQ(f16_from_float(-middle), even | 0x8000) << bits;
  }
  EXPECT_EQ(f16_from_float(65519.0F), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0F), 0x7c00);
  EXPECT_EQ(f16_from_float(1e30F), 0x7c00);
}

TEST(Float16, bfloat16_rounds_to_nearest_even_and_keeps_nan_and_infinity) {
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808000U)), 0x3f80);  // a tie goes to the even one
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f818000U)), 0x3f82);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x3f808001U)), 0x3f81);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace keepstep::comm
