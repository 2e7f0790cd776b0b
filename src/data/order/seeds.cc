#include "data/order/seeds.h"

namespace keepstep::data {

uint64_t mix_seed(std::span<const uint64_t> parts) {
  uint64_t value = 0;
  for (const uint64_t part : parts) {
    value += part + 0x9e37'79b9'7f4a'7c15;
    value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9;
    value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11eb;
    value ^= value >> 31;
  }
  return value;
}

}  // namespace keepstep::data
