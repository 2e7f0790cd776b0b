// Several data sets as one stream in fixed shares: which of them supplies sample n, and which of its samples that is.
//
// With shares w[s] that sum to 1, the first n samples of the stream contain n * w[s] of source s, to within one sample,
// for every n. The order is earliest deadline first (sample k of source s belongs between k / w and (k + 1) / w; Liu
// and Layland, 1973; no deadline is missed with unit jobs and whole slots: Baruah et al., Proportionate progress,
// 1996). It repeats after a period of as many samples as the shares' denominator, so a table of one period gives any
// sample in constant time, without the samples before it.
//
// Immutable after `make`; any thread may read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace keepstep::data {

class Blend {
 public:
  static constexpr uint64_t kMaxPeriod = 1 << 20;
  static constexpr size_t kMaxSources = 1 << 12;

  struct Sample {
    uint32_t source = 0;
    uint64_t number = 0;  // from 0, within this source
    bool operator==(const Sample&) const = default;
  };

  // Source s supplies counts[s] of every sum(counts) samples. INVALID_ARGUMENT: no source, a source with a count of 0,
  // or a sum beyond kMaxPeriod.
  static StatusOr<Blend> make(std::span<const uint64_t> counts);

  uint64_t period() const { return table_.size(); }
  // The sample at `position` of the stream, which never ends.
  Sample at(uint64_t position) const;

 private:
  struct Entry {
    uint32_t source = 0;
    uint32_t number = 0;  // within the period
  };
  std::vector<Entry> table_;
  std::vector<uint64_t> counts_;
};

// Whole numbers in proportion to `weights`, none of them 0, whose sum is `period`: each is less than one off its exact
// share (largest remainders), except where that would make one 0. INVALID_ARGUMENT: a weight that is not positive and
// finite, or more weights than `period`.
StatusOr<std::vector<uint64_t>> counts_of(std::span<const double> weights, uint64_t period);

}  // namespace keepstep::data
