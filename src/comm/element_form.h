// How an element lies in memory (Stored), is added (Accumulated), and how to go from one to the other. For the loops of
// reduce.cc and canonical_sum.cc, which are templates over a form.
#pragma once

#include <cstdint>

#include "comm/float16.h"

namespace keepstep::comm {

template <class T>
struct Plain {
  using Stored = T;
  using Accumulated = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};
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
