// The type of an element in memory (Stored) and in additions (Accumulated), and the conversions between them. For the
// loops in reduce.cc, partial.cc and canonical_sum.cc, which are templates over a form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/numbers/float16.h"
#include "keepstep/types.h"

namespace keepstep::comm {

template <class T>
struct Plain {
  using Stored = T;
  using Accumulated = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

// Divides a sum by the number of its terms; integers round towards zero.
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
struct Truth {  // a bool; any non-zero byte is true
  using Stored = uint8_t;
  using Accumulated = uint8_t;
  static uint8_t load(uint8_t value) { return value != 0; }
  static uint8_t store(uint8_t value) { return value; }
};

// Returns what `visit` returns for the form of `type`.
template <class Visit>
auto with_form(DataType type, Visit visit) {
  switch (type) {
    case DataType::kFloat32:
      return visit(Plain<float>{});
    case DataType::kFloat64:
      return visit(Plain<double>{});
    case DataType::kFloat16:
      return visit(Half{});
    case DataType::kBFloat16:
      return visit(Brain{});
    case DataType::kInt8:
      return visit(Plain<int8_t>{});
    case DataType::kUint8:
      return visit(Plain<uint8_t>{});
    case DataType::kInt16:
      return visit(Plain<int16_t>{});
    case DataType::kInt32:
      return visit(Plain<int32_t>{});
    case DataType::kInt64:
      return visit(Plain<int64_t>{});
    case DataType::kBool:
      break;
  }
  return visit(Truth{});
}

}  // namespace keepstep::comm
