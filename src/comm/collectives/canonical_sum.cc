#include "comm/collectives/canonical_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "comm/numbers/element_form.h"
#include "comm/numbers/float_environment.h"
#include "comm/numbers/reduce.h"

// The vectorizer at its usual cost model, also at -O2. Vector lanes are elements: it cannot change a sum's order.
#pragma GCC optimize("tree-vectorize", "vect-cost-model=dynamic")

namespace keepstep::comm {
namespace {

constexpr size_t kBlock = 512;  // elements: a stack of them stays in the first-level cache
constexpr size_t kAlignment = 64;
constexpr size_t kDeepest = 26;  // subtrees of [0, n), n <= kMaxLeaves: one a bit

template <class Visit>
void with_sum_form(DataType type, Visit visit) {
  with_form(type, [&](auto form) {
    if constexpr (std::is_floating_point_v<typename decltype(form)::Accumulated>) {
      visit(form);
    } else {
      KEEPSTEP_CHECK(false, "a type that why_no_sum() refuses");
    }
  });
}

template <class Sum>
void add_to_newer(const Sum* __restrict older, Sum* __restrict newer, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    newer[i] = older[i] + newer[i];
  }
}
template <class Sum>
void add_to_older(Sum* __restrict older, const Sum* __restrict newer, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    older[i] = older[i] + newer[i];
  }
}

// stack[depth - additions] = (stack[depth - additions] + (... + (stack[depth - 1] + value))).
template <class Form>
void add_leaf(typename Form::Accumulated* const* stack, size_t depth, size_t additions,
              const typename Form::Stored* __restrict values, size_t count) {
  using Sum = typename Form::Accumulated;
  alignas(kAlignment) Sum value[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    Sum* __restrict loaded = additions == 0 ? stack[depth] + begin : value;
    for (size_t i = 0; i < n; ++i) {
      loaded[i] = values == nullptr ? Sum{0} : Form::load(values[begin + i]);
    }
    for (size_t k = 1; k < additions; ++k) {
      add_to_newer(stack[depth - k] + begin, value, n);
    }
    if (additions > 0) {
      add_to_older(stack[depth - additions] + begin, value, n);
    }
  }
}

// Dividing by a power of two is multiplying by its inverse, bit for bit and much faster.
template <class Form>
void store_divided(typename Form::Stored* __restrict out, const typename Form::Accumulated* __restrict sum, size_t n,
                   uint64_t divisor) {
  const auto by = static_cast<typename Form::Accumulated>(divisor);
  if (divisor <= 1) {
    for (size_t i = 0; i < n; ++i) {
      out[i] = Form::store(sum[i]);
    }
  } else if (std::has_single_bit(divisor)) {
    const auto inverse = 1 / by;
    for (size_t i = 0; i < n; ++i) {
      out[i] = Form::store(sum[i] * inverse);
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      out[i] = Form::store(sum[i] / by);
    }
  }
}

template <class Form>
void add_parts(typename Form::Stored* destination, std::span<const PartialSum> parts, uint32_t leaves, size_t count,
               uint64_t divisor) {
  using Sum = typename Form::Accumulated;
  alignas(kAlignment) Sum blocks[kDeepest][kBlock];
  std::array<const Sum*, kDeepest> stack{};  // a part as it came, or the block of that depth
  std::vector<size_t> additions;
  for (const PartialSum& part : parts) {
    additions.push_back(additions_after(leaves, 0, part.leaves));
  }
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    size_t depth = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const Sum* newer = reinterpret_cast<const Sum*>(parts[p].data) + begin;
      for (size_t k = 0; k < additions[p]; ++k) {
        --depth;
        if (stack[depth] == blocks[depth]) {
          add_to_older(blocks[depth], newer, n);
        } else {
          const Sum* __restrict older = stack[depth];
          Sum* __restrict sum = blocks[depth];
          for (size_t i = 0; i < n; ++i) {
            sum[i] = older[i] + newer[i];
          }
        }
        newer = blocks[depth];
      }
      stack[depth++] = newer;
    }
    KEEPSTEP_CHECK(depth == 1, "the parts do not make up the tree");
    store_divided<Form>(destination + begin, stack[0], n, divisor);
  }
}

}  // namespace

DataType sum_type(DataType type) { return type == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32; }

std::string why_no_sum(DataType type) {
  if (type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
      type == DataType::kBFloat16) {
    return {};
  }
  return absl::StrFormat(
      "the canonical order is for floating-point sums, not for %s; sums of integers are exact in "
      "any order: use all_reduce",
      name(type));
}

void add_in_tree_order(std::byte* destination, DataType type, std::span<const PartialSum> parts, uint32_t leaves,
                       size_t count, uint64_t divisor) {
  const DefaultFloats floats;
  with_sum_form(type, [&](auto form) {
    using Form = decltype(form);
    add_parts<Form>(reinterpret_cast<typename Form::Stored*>(destination), parts, leaves, count, divisor);
  });
}

void CanonicalSum::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{kAlignment});
}

CanonicalSum::CanonicalSum(size_t count, DataType type) : count_(count), type_(type) {
  KEEPSTEP_CHECK(why_no_sum(type).empty(), "a CanonicalSum of a type that has no sum");
}

Status CanonicalSum::begin(const LeafRun& run) {
  if (std::string why = why_not(run); !why.empty()) {
    return absl::InvalidArgumentError(why);
  }
  run_ = run;
  leaf_ = run.begin;
  given_ = 0;
  depth_ = 0;
  if (!complete()) {
    additions_ = additions_after(run_.leaves, run_.begin, {leaf_, leaf_ + 1});
  }
  return absl::OkStatus();
}

Status CanonicalSum::add(size_t offset, const void* values, size_t count) {
  if (offset > count_ || count > count_ - offset) {
    return absl::InvalidArgumentError(
        absl::StrFormat("elements [%d, %d) of a leaf of %d", offset, offset + count, count_));
  }
  if (complete()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("this rank's leaves [%d, %d) of %d are all added already", run_.begin, run_.end, run_.leaves));
  }
  if (count > count_ - given_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("leaf %d: %d elements more than the %d it has", leaf_, given_ + count - count_, count_));
  }
  const size_t target = depth_ - additions_;
  if (target == vectors_.size()) {
    const size_t bytes = std::max<size_t>(count_ * size_of(sum_type(type_)), 1);
    vectors_.emplace_back(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
  }
  const DefaultFloats floats;
  with_sum_form(type_, [&](auto form) {
    using Form = decltype(form);
    std::array<typename Form::Accumulated*, 64> stack{};
    for (size_t k = 0; k <= depth_ && k < vectors_.size(); ++k) {
      stack[k] = reinterpret_cast<typename Form::Accumulated*>(vectors_[k].get()) + offset;
    }
    add_leaf<Form>(stack.data(), depth_, additions_, static_cast<const typename Form::Stored*>(values), count);
  });
  given_ += count;
  if (given_ == count_) {
    given_ = 0;
    depth_ = target + 1;
    ++leaf_;
    if (!complete()) {
      additions_ = additions_after(run_.leaves, run_.begin, {leaf_, leaf_ + 1});
    }
  }
  return absl::OkStatus();
}

std::vector<const void*> CanonicalSum::partials() const {
  KEEPSTEP_CHECK(complete(), "partials() of a CanonicalSum that misses leaves");
  std::vector<const void*> result;
  for (size_t k = 0; k < depth_; ++k) {
    result.push_back(vectors_[k].get());
  }
  return result;
}

Status CanonicalSum::write(void* destination, uint64_t divisor) const {
  if (!complete() || run_.begin != 0 || run_.end != run_.leaves || run_.leaves == 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("leaves [%d, %d) of %d are not the whole sum", run_.begin, leaf_, run_.leaves));
  }
  const PartialSum all{{0, run_.leaves}, vectors_[0].get()};
  add_in_tree_order(static_cast<std::byte*>(destination), type_, {&all, 1}, run_.leaves, count_, divisor);
  return absl::OkStatus();
}

size_t CanonicalSum::bytes() const { return vectors_.size() * count_ * size_of(sum_type(type_)); }

}  // namespace keepstep::comm
