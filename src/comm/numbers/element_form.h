// How an element lies in memory (Stored), is added (Accumulated), and how to go from one to the other. For the loops of
// reduce.cc and canonical_sum.cc, which are templates over a form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/numbers/float16.h"

namespace keepstep::comm {

template <class T>
struct Plain {
  using Stored = T;
  using Accumulated = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

// Of a sum by the number of its terms; integers are rounded towards zero.
template <class T>
T quotient(T sum, size_t by) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(by));
  } else {
    return sum / static_cast<T>(by);
  }
}

struct Half {
  using Stored = uint16_t;
  using Accumulated = float;
  static float load(uint16_t bits) { return float_from_f16(bits); }
  static uint16_t store(float value) { return f16_from_float(value); }
};
struct Brain {
  using Stored = uint16_t;
  using Accumulated = float;
  static float load(uint16_t bits) { return float_from_bf16(bits); }
  static uint16_t store(float value) { return bf16_from_float(value); }
};

}  // namespace keepstep::comm
