#include "data/order/sample_order.h"

#include <algorithm>
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

  static constexpr size_t kMax = 64;

  // out[i] = the sample at index + i, for i < count <= kMax. A permutation is a chain of dependent multiplications;
  // several in parallel keep the processor busy, including those that walk on.
  void at(uint64_t index, size_t count, uint64_t* out) const {
    uint64_t walking[kMax] = {};
    uint8_t place[kMax] = {};  // in `out`
    for (size_t i = 0; i < count; ++i) {
      walking[i] = index + i;
      place[i] = static_cast<uint8_t>(i);
    }
    while (count > 0) {  // terminates: the cycle through an index returns to it, and it is less than size_
      for (size_t i = 0; i < count; i += kLanes) {
        permute(walking + i);
      }
      size_t left = 0;
      for (size_t i = 0; i < count; ++i) {
        const uint64_t found = walking[i];
        out[place[i]] = found;
        walking[left] = found;
        place[left] = place[i];
        left += found >= size_ ? 1 : 0;
      }
      count = left;
    }
  }

 private:
  static constexpr size_t kLanes = 8;
  static_assert(kMax % kLanes == 0);

  void permute(uint64_t* x) const {
    uint64_t left[kLanes];
    uint64_t right[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      left[lane] = x[lane] >> half_bits_;
      right[lane] = x[lane] & ((uint64_t{1} << half_bits_) - 1);
    }
    for (const uint64_t key : keys_) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const uint64_t next = left[lane] ^ (mix(right[lane] ^ key) >> (64 - half_bits_));
        left[lane] = right[lane];
        right[lane] = next;
      }
    }
    for (size_t lane = 0; lane < kLanes; ++lane) {
      x[lane] = left[lane] << half_bits_ | right[lane];
    }
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
    while (index < dataset_size && done < count) {
      const auto now = static_cast<size_t>(std::min({uint64_t{Shuffle::kMax}, dataset_size - index, count - done}));
      shuffle.at(index, now, out + done);
      index += now;
      done += now;
    }
  }
}

}  // namespace keepstep::data
