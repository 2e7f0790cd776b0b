// For tests: leaves of random numbers, and their sum by the tree's definition, one element at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "comm/collectives/canonical_sum.h"
#include "comm/numbers/float16.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {

// KEEPSTEP_SEED repeats a failed run.
inline uint64_t test_seed() {
  const char* given = std::getenv("KEEPSTEP_SEED");
  static const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  return seed;
}
inline std::string repeat_with() { return "repeat it with: KEEPSTEP_SEED=" + std::to_string(test_seed()); }

inline double element(const std::byte* data, DataType type, size_t i) {
  const auto load = [&](auto value) {
    std::memcpy(&value, data + i * sizeof(value), sizeof(value));
    return value;
  };
  switch (type) {
    case DataType::kFloat64:
      return load(double{});
    case DataType::kFloat32:
      return load(float{});
    case DataType::kFloat16:
      return float_from_f16(load(uint16_t{}));
    default:
      return float_from_bf16(load(uint16_t{}));
  }
}

inline void put(std::byte* data, DataType type, size_t i, double value) {
  const auto store = [&](auto stored) { std::memcpy(data + i * sizeof(stored), &stored, sizeof(stored)); };
  switch (type) {
    case DataType::kFloat64:
      return store(value);
    case DataType::kFloat32:
      return store(static_cast<float>(value));
    case DataType::kFloat16:
      return store(f16_from_float(static_cast<float>(value)));
    default:
      return store(bf16_from_float(static_cast<float>(value)));
  }
}

using Leaf = std::vector<std::byte>;

// `leaves` vectors of `count` elements of `type`; exponents spread over 2 * `spread` powers of two, some zeros.
inline std::vector<Leaf> random_leaves(std::mt19937_64& random, DataType type, size_t leaves, size_t count,
                                       int spread) {
  if (type == DataType::kFloat16) {
    spread = std::min(spread, 8);  // or the sum of many would overflow
  }
  std::vector<Leaf> result(leaves, Leaf(count * size_of(type)));
  for (Leaf& leaf : result) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bits = random();
      const double mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
      const int exponent = static_cast<int>(bits % (2 * spread + 1)) - spread;
      const double value = (bits & 0xf00) == 0 ? 0.0 : std::ldexp((bits & 0x800) != 0 ? mantissa : -mantissa, exponent);
      put(leaf.data(), type, i, value);
    }
  }
  return result;
}

template <class Sum>
Sum tree_sum(const std::vector<Leaf>& leaves, DataType type, size_t i, size_t begin, size_t end) {
  if (end - begin == 1) {
    return static_cast<Sum>(element(leaves[begin].data(), type, i));
  }
  size_t left = 1;
  while (left * 2 < end - begin) {
    left *= 2;
  }
  volatile const Sum first = tree_sum<Sum>(leaves, type, i, begin, begin + left);
  volatile const Sum second = tree_sum<Sum>(leaves, type, i, begin + left, end);
  return first + second;
}

// The sum of leaves [begin, end), which must be a subtree, divided by `divisor` (0: not divided), as `to`.
inline Leaf reference_sum(const std::vector<Leaf>& leaves, DataType type, DataType to, size_t begin, size_t end,
                          uint64_t divisor) {
  const size_t count = leaves[0].size() / size_of(type);
  Leaf result(count * size_of(to));
  for (size_t i = 0; i < count; ++i) {
    if (type == DataType::kFloat64) {
      const double sum = tree_sum<double>(leaves, type, i, begin, end);
      put(result.data(), to, i, divisor == 0 ? sum : sum / static_cast<double>(divisor));
    } else {
      const float sum = tree_sum<float>(leaves, type, i, begin, end);
      put(result.data(), to, i, divisor == 0 ? sum : sum / static_cast<float>(divisor));
    }
  }
  return result;
}

// The sums of a run's maximal subtrees, computed leaf by leaf.
inline CanonicalSum sum_of(const LeafRun& run, const std::vector<Leaf>& leaves, DataType type) {
  CanonicalSum sum(leaves[0].size() / size_of(type), type);
  EXPECT_TRUE(sum.begin(run).ok());
  for (uint32_t leaf = run.begin; leaf < run.end; ++leaf) {
    EXPECT_TRUE(sum.add(0, leaves[leaf].data(), sum.count()).ok());
  }
  return sum;
}

}  // namespace keepstep::comm
