#include "comm/numbers/reduce.h"

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "comm/numbers/element_form.h"

// The vectorizer at its usual cost model, also at -O2. Vector lanes are elements: it cannot change a sum's order.
#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic")

namespace keepstep::comm {
namespace {

constexpr size_t kBlock = 2048;  // elements; the accumulator stays in the first-level cache

// Integers wrap: arithmetic in an unsigned type of at least 32 bits, which has no overflow.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return (b < a) | (b != b) ? b : a;  // a NaN in `a` loses every comparison, so it stays
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return (b > a) | (b != b) ? b : a;
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

template <class Form, class Op>
void reduce_as(std::byte* destination, const std::byte* const* sources, size_t source_count, size_t count, Op op,
               size_t divisor) {
  using Stored = typename Form::Stored;
  using Accumulated = typename Form::Accumulated;
  alignas(64) Accumulated sum[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const auto* first = reinterpret_cast<const Stored*>(sources[0]) + begin;
    for (size_t i = 0; i < n; ++i) {
      sum[i] = Form::load(first[i]);
    }
    for (size_t s = 1; s < source_count; ++s) {
      const auto* next = reinterpret_cast<const Stored*>(sources[s]) + begin;
      for (size_t i = 0; i < n; ++i) {
        sum[i] = op(sum[i], static_cast<Accumulated>(Form::load(next[i])));
      }
    }
    if (divisor > 1) {
      for (size_t i = 0; i < n; ++i) {
        sum[i] = quotient(sum[i], divisor);
      }
    }
    auto* __restrict out = reinterpret_cast<Stored*>(destination) + begin;
    for (size_t i = 0; i < n; ++i) {
      out[i] = Form::store(sum[i]);
    }
  }
}

template <class Form>
void reduce_with(std::byte* destination, const std::byte* const* sources, size_t source_count, size_t count,
                 ReduceOp op) {
  const auto run = [&](auto with, size_t divisor = 1) {
    reduce_as<Form>(destination, sources, source_count, count, with, divisor);
  };
  constexpr bool kIsTruth = std::is_same_v<Form, Truth>;
  switch (op) {
    case ReduceOp::kSum:
      return kIsTruth ? run(Max{}) : run(Sum{});
    case ReduceOp::kAverage:
      return run(Sum{}, source_count);
    case ReduceOp::kProduct:
      return run(Product{});
    case ReduceOp::kMin:
      return run(Min{});
    case ReduceOp::kMax:
      return run(Max{});
    default:
      break;
  }
  if constexpr (std::is_integral_v<typename Form::Accumulated>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return run(And{});
      case ReduceOp::kBitOr:
        return run(Or{});
      case ReduceOp::kBitXor:
        return run(Xor{});
      default:
        break;
    }
  }
  KEEPSTEP_CHECK(false, "a reduction that why_not() refuses");
}

bool is_floating(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

}  // namespace

size_t size_of(DataType type) {
  return with_form(type, [](auto form) { return sizeof(typename decltype(form)::Stored); });
}

const char* name(DataType type) {
  static constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16", "int8",
                                           "uint8",   "int16",   "int32",   "int64",    "bool"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown type";
}

const char* name(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown operation";
}

std::string why_not(DataType type, ReduceOp op) {
  if (type > DataType::kBool || op > ReduceOp::kBitXor) {
    return "the element type or the reduction is not known";
  }
  if (op == ReduceOp::kAverage && type == DataType::kBool) {
    return "avg is not defined for bool; convert it, or use sum for \"or\"";
  }
  if (op >= ReduceOp::kBitAnd && is_floating(type)) {
    return std::string(name(op)) + " is not defined for " + name(type) + "; bitwise reductions need integers or bool";
  }
  return {};
}

void reduce_in_order(std::byte* destination, const std::byte* const* sources, size_t source_count, size_t count,
                     DataType type, ReduceOp op) {
  with_form(type, [&](auto form) { reduce_with<decltype(form)>(destination, sources, source_count, count, op); });
}

}  // namespace keepstep::comm
