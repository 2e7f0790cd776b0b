// float16 and bfloat16 to float32 and back, rounding to nearest even, without branches so that loops vectorize.
//
// After F. Giesen, "Float->half conversion variants" (2012). A NaN stays a NaN; its payload may change.
#pragma once

#include <bit>
#include <cstdint>

namespace keepstep::comm {

inline float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

inline float float_from_f16(uint16_t bits) {
  const uint32_t magnitude = (uint32_t{bits} & 0x7fff) << 13;
  const uint32_t exponent = magnitude & (0x7c00 << 13);
  const uint32_t normal = magnitude + ((127 - 15) << 23);
  const uint32_t special = normal + ((128 - 16) << 23);  // infinity and NaN
  constexpr float kSmallest = 6.103515625e-05F;          // 2^-14
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(normal + (1 << 23)) - kSmallest);
  const uint32_t finite = exponent == 0 ? subnormal : normal;
  const uint32_t result = exponent == (0x7c00 << 13) ? special : finite;
  return std::bit_cast<float>(result | (uint32_t{bits} & 0x8000) << 16);
}

inline uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  constexpr uint32_t kTooLarge = (127 + 16) << 23;                 // 2^16: infinity from here on
  constexpr uint32_t kSmallestNormal = 113 << 23;                  // 2^-14
  constexpr uint32_t kAlign = ((127 - 15) + (23 - 10) + 1) << 23;  // its last bit is a subnormal's last bit
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAlign)) - kAlign;
  const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  const uint32_t result = magnitude >= kTooLarge ? special : finite;
  return static_cast<uint16_t>(result | (bits >> 16 & 0x8000));
}

}  // namespace keepstep::comm
