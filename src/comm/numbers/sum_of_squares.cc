#include "comm/numbers/sum_of_squares.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "comm/numbers/float16.h"
#include "comm/numbers/float_environment.h"

#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic")

namespace keepstep::comm {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kBlock = 4096;

template <class Stored, class Load>
double block_sum(const Stored* values, size_t count, Load load) {
  double lanes[kLanes] = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const double value = load(values[i + k]);
      lanes[k] += value * value;
    }
  }
  for (size_t i = whole; i < count; ++i) {
    const double value = load(values[i]);
    lanes[i - whole] += value * value;
  }
  for (size_t width = 1; width < kLanes; width *= 2) {
    for (size_t k = 0; k < kLanes; k += 2 * width) {
      lanes[k] += lanes[k + width];
    }
  }
  return lanes[0];
}

// Carries of a binary counter, then the right edge: the tree of canonical_tree.h.
template <class Stored, class Load>
double tree_sum(const Stored* values, size_t count, Load load) {
  double stack[64];
  size_t depth = 0;
  uint64_t blocks = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    double sum = block_sum(values + begin, std::min(kBlock, count - begin), load);
    for (uint64_t carries = blocks++; (carries & 1) != 0; carries >>= 1) {
      sum = stack[--depth] + sum;
    }
    stack[depth++] = sum;
  }
  while (depth > 1) {
    stack[depth - 2] += stack[depth - 1];
    --depth;
  }
  return depth == 0 ? 0.0 : stack[0];
}

}  // namespace

double sum_of_squares(const void* values, size_t count, DataType type) {
  const DefaultFloats floats;
  switch (type) {
    case DataType::kFloat64:
      return tree_sum(static_cast<const double*>(values), count, [](double value) { return value; });
    case DataType::kFloat32:
      return tree_sum(static_cast<const float*>(values), count, [](float value) { return double{value}; });
    case DataType::kFloat16:
      return tree_sum(static_cast<const uint16_t*>(values), count,
                      [](uint16_t bits) { return double{float_from_f16(bits)}; });
    case DataType::kBFloat16:
      return tree_sum(static_cast<const uint16_t*>(values), count,
                      [](uint16_t bits) { return double{float_from_bf16(bits)}; });
    default:
      KEEPSTEP_CHECK(false, "a length of what is not floating point");
  }
}

}  // namespace keepstep::comm
