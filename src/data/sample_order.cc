#include "data/sample_order.h"

#include <array>

#include "base/check.h"

namespace keepstep::data {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
constexpr int kRounds = 8;

constexpr uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The permutation of one epoch.
class Shuffle {
 public:
  Shuffle(uint64_t seed, uint64_t epoch, uint64_t size) : size_(size) {
    while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < size) {
      ++half_bits_;
    }
    const uint64_t key = mix(mix(seed + kGolden) + epoch * kGolden);
    for (int round = 0; round < kRounds; ++round) {
      keys_[round] = mix(key + static_cast<uint64_t>(round + 1) * kGolden);
    }
  }

  uint64_t at(uint64_t index) const {
    do {
      index = permute(index);
    } while (index >= size_);  // ends: the cycle through `index` comes back to it, and it is less than size_
    return index;
  }

 private:
  uint64_t permute(uint64_t x) const {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & ((uint64_t{1} << half_bits_) - 1);
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right ^ key) >> (64 - half_bits_));
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t size_;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace

uint64_t sample_at(uint64_t seed, uint64_t position, uint64_t dataset_size) {
  uint64_t sample = 0;
  samples_at(seed, position, 1, dataset_size, &sample);
  return sample;
}

void samples_at(uint64_t seed, uint64_t position, uint64_t count, uint64_t dataset_size, uint64_t* out) {
  KEEPSTEP_CHECK(dataset_size >= 1, "an empty data set has no samples");
  uint64_t index = position % dataset_size;
  uint64_t epoch = position / dataset_size;
  for (uint64_t done = 0; done < count; ++epoch, index = 0) {
    const Shuffle shuffle(seed, epoch, dataset_size);
    for (; index < dataset_size && done < count; ++index, ++done) {
      out[done] = shuffle.at(index);
    }
  }
}

}  // namespace keepstep::data
