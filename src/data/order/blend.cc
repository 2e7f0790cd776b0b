#include "data/order/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/check.h"

namespace keepstep::data {

StatusOr<Blend> Blend::make(std::span<const uint64_t> counts) {
  if (counts.empty() || counts.size() > kMaxSources) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a blend has 1 to %d sources; this one has %d", kMaxSources, counts.size()));
  }
  uint64_t period = 0;
  for (size_t source = 0; source < counts.size(); ++source) {
    if (counts[source] == 0 || counts[source] > kMaxPeriod) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "source %d of a blend has %d samples of a period; 1 to %d can be", source, counts[source], kMaxPeriod));
    }
    period += counts[source];
  }
  if (period > kMaxPeriod) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a blend whose order repeats after %d samples; at most %d can be", period, kMaxPeriod));
  }
  Blend blend;
  blend.counts_.assign(counts.begin(), counts.end());
  blend.table_.reserve(period);
  std::vector<uint32_t> placed(counts.size());  // per source, so far
  // Sample k of a source with c of P may be placed from slot floor(k P / c) on, and must be before ceil((k + 1) P / c).
  using Due = std::tuple<uint64_t, uint32_t>;  // the earlier deadline first, then the source
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  std::vector<std::vector<uint32_t>> released(period);  // sources whose next sample may be placed from this slot on
  const auto deadline = [&](uint32_t source, uint64_t k) {
    return ((k + 1) * period + counts[source] - 1) / counts[source];
  };
  for (uint32_t source = 0; source < counts.size(); ++source) {
    due.emplace(deadline(source, 0), source);
  }
  for (uint64_t slot = 0; slot < period; ++slot) {
    for (const uint32_t source : released[slot]) {
      due.emplace(deadline(source, placed[source]), source);
    }
    KEEPSTEP_CHECK(!due.empty(), "a slot that nobody may fill");
    const auto [end, source] = due.top();
    due.pop();
    KEEPSTEP_CHECK(slot < end, "a sample after its deadline");
    blend.table_.push_back({source, placed[source]});
    const uint64_t next = ++placed[source];
    if (next < counts[source]) {
      // Not before the next slot: a source gets at most one sample per slot.
      const uint64_t release = std::max(next * period / counts[source], slot + 1);
      released[release].push_back(source);
    }
  }
  return blend;
}

Blend::Sample Blend::at(uint64_t position) const {
  const Entry& entry = table_[position % period()];
  return {entry.source, position / period() * counts_[entry.source] + entry.number};
}

StatusOr<std::vector<uint64_t>> counts_of(std::span<const double> weights, uint64_t period) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] <= 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weight %d is %g; weights are positive numbers", i, weights[i]));
    }
    sum += weights[i];
  }
  if (weights.empty() || weights.size() > period) {
    return absl::InvalidArgumentError(absl::StrFormat("%d weights cannot share %d samples", weights.size(), period));
  }
  std::vector<uint64_t> counts(weights.size());
  std::vector<double> remainders(weights.size());
  uint64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(period);
    counts[i] = std::max<uint64_t>(1, static_cast<uint64_t>(exact));
    remainders[i] = exact - static_cast<double>(counts[i]);  // negative for one that was given more than its share
    given += counts[i];
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  for (size_t i = 0; given < period; i = (i + 1) % order.size()) {
    ++counts[order[i]];
    ++given;
  }
  while (given > period) {  // tiny weights were rounded up: the largest loses
    --*std::max_element(counts.begin(), counts.end());
    --given;
  }
  return counts;
}

}  // namespace keepstep::data
