#include "comm/numbers/partial.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "comm/numbers/element_form.h"
#include "comm/numbers/float16.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {
namespace {

constexpr size_t kBlock = 2048;  // elements widened at a time

bool is_half(DataType type) { return type == DataType::kFloat16 || type == DataType::kBFloat16; }

// Averages travel as sums.
ReduceOp on_the_way(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

template <class T>
void divide(std::byte* data, size_t count, size_t by) {
  auto* values = reinterpret_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    values[i] = quotient(values[i], by);
  }
}

void divide(std::byte* data, size_t count, size_t by, DataType type) {
  KEEPSTEP_CHECK(!is_half(type) && type != DataType::kBool, "halves are divided while they are float32, bool never is");
  with_form(type, [&](auto form) { divide<typename decltype(form)::Stored>(data, count, by); });
}

void widen(float* to, const std::byte* from, size_t count, DataType type) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    to[i] = type == DataType::kFloat16 ? float_from_f16(halves[i]) : float_from_bf16(halves[i]);
  }
}

void narrow(std::byte* to, const float* from, size_t count, DataType type) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < count; ++i) {
    halves[i] = type == DataType::kFloat16 ? f16_from_float(from[i]) : bf16_from_float(from[i]);
  }
}

// `use` gets each block of sums, and where it begins.
template <class Use>
void halves_in_blocks(const std::byte* before, const std::byte* const* sources, size_t source_count, size_t count,
                      DataType type, ReduceOp op, Use use) {
  std::vector<float> wide((source_count + 1) * kBlock);
  std::vector<const std::byte*> from;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    from.clear();
    if (before != nullptr) {
      from.push_back(before + begin * sizeof(float));
    }
    for (size_t s = 0; s < source_count; ++s) {
      float* block = wide.data() + (s + 1) * kBlock;
      widen(block, sources[s] + begin * sizeof(uint16_t), n, type);
      from.push_back(reinterpret_cast<const std::byte*>(block));
    }
    reduce_in_order(reinterpret_cast<std::byte*>(wide.data()), from.data(), from.size(), n, DataType::kFloat32,
                    on_the_way(op));
    use(begin, n, wide.data());
  }
}

void plain(std::byte* to, const std::byte* before, const std::byte* const* sources, size_t source_count, size_t count,
           DataType type, ReduceOp op) {
  std::vector<const std::byte*> from;
  if (before != nullptr) {
    from.push_back(before);
  }
  from.insert(from.end(), sources, sources + source_count);
  reduce_in_order(to, from.data(), from.size(), count, type, on_the_way(op));
}

}  // namespace

size_t partial_size(DataType type) { return is_half(type) ? sizeof(float) : size_of(type); }

void add_partial(std::byte* partial, const std::byte* before, const std::byte* const* sources, size_t source_count,
                 size_t count, DataType type, ReduceOp op) {
  if (!is_half(type)) {
    return plain(partial, before, sources, source_count, count, type, op);
  }
  halves_in_blocks(before, sources, source_count, count, type, op, [&](size_t begin, size_t n, const float* sums) {
    std::copy_n(sums, n, reinterpret_cast<float*>(partial) + begin);
  });
}

void finish_partial(std::byte* destination, const std::byte* before, const std::byte* const* sources,
                    size_t source_count, size_t count, DataType type, ReduceOp op, size_t total) {
  const bool divides = op == ReduceOp::kAverage && total > 1;
  if (is_half(type)) {
    halves_in_blocks(before, sources, source_count, count, type, op, [&](size_t begin, size_t n, float* sums) {
      if (divides) {
        divide<float>(reinterpret_cast<std::byte*>(sums), n, total);
      }
      narrow(destination + begin * sizeof(uint16_t), sums, n, type);
    });
    return;
  }
  plain(destination, before, sources, source_count, count, type, op);
  if (divides) {
    divide(destination, count, total, type);
  }
}

}  // namespace keepstep::comm
