// Which sample is number n: a shuffle of the data set that is computed, not stored.
//
// The position of a job in its data is one integer, the number of samples consumed so far, at every world size. Each
// epoch (position / dataset_size) is another permutation of the samples 0 .. dataset_size - 1.
//
// Bit-exact forever: a restarted job must see the same order, so changing one bit here means a new function. With
// mix(x) the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
//   mix(x):  x ^= x >> 30;  x *= 0xbf58476d1ce4e5b9;  x ^= x >> 27;  x *= 0x94d049bb133111eb;  x ^= x >> 31
// and all arithmetic modulo 2^64:
//   key     = mix(mix(seed + G) + epoch * G)                with G = 0x9e3779b97f4a7c15
//   key[r]  = mix(key + (r + 1) * G)                        for the rounds r = 0 .. 7
//   h       = the least h >= 1 with 4^h >= dataset_size     (half the width of the Feistel network, in bits)
//   permute(x):  left = x >> h, right = x mod 2^h;
//                for r = 0 .. 7:  left, right = right, left ^ (mix(right ^ key[r]) >> (64 - h));
//                then left << h | right
//   sample  = permute(position mod dataset_size), and permute of that again while it is >= dataset_size
// The last line is cycle walking (Black and Rogaway: Ciphers with Arbitrary Finite Domains, 2002): 4^h is less than
// four times the size (or is 4), so fewer than four calls of permute are expected. A shuffle, not a cipher.
//
// Any thread may call.
#pragma once

#include <cstdint>

namespace keepstep::data {

// The sample at `position` (0, 1, 2, ... over all epochs), less than `dataset_size`, which must be at least 1.
uint64_t sample_at(uint64_t seed, uint64_t position, uint64_t dataset_size);

// out[i] = sample_at(seed, position + i, dataset_size) for i < count; may cross the end of an epoch.
void samples_at(uint64_t seed, uint64_t position, uint64_t count, uint64_t dataset_size, uint64_t* out);

}  // namespace keepstep::data
