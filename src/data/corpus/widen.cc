// A separate file because it is compiled with -O3 (CMakeLists.txt): at -O2, GCC 12 does not vectorize these loops.
#include "data/corpus/widen.h"

#include <cstring>

#if defined(__x86_64__)
#define KEEPSTEP_AVX2 __attribute__((target("avx2")))
#endif

namespace keepstep::data {
namespace {

template <typename T>
inline __attribute__((always_inline)) void loop(const T* tokens, uint64_t count, int64_t* out) {
  for (uint64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(tokens[i]);  // NOLINT(bugprone-signed-char-misuse): int8 is a number here
  }
}

#ifdef KEEPSTEP_AVX2
template <typename T>
KEEPSTEP_AVX2 void loop_avx2(const T* tokens, uint64_t count, int64_t* out) {
  loop(tokens, count, out);
}
#endif

template <typename T>
void widen_from(const std::byte* from, uint64_t count, int64_t* out) {
  const T* tokens = reinterpret_cast<const T*>(from);
#ifdef KEEPSTEP_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) {
    return loop_avx2(tokens, count, out);
  }
#endif
  loop(tokens, count, out);
}

}  // namespace

void widen(TokenType type, const std::byte* from, uint64_t count, int64_t* out) {
  switch (type) {
    case TokenType::kUint8:
      return widen_from<uint8_t>(from, count, out);
    case TokenType::kInt8:
      return widen_from<int8_t>(from, count, out);
    case TokenType::kInt16:
      return widen_from<int16_t>(from, count, out);
    case TokenType::kUint16:
      return widen_from<uint16_t>(from, count, out);
    case TokenType::kInt32:
      return widen_from<int32_t>(from, count, out);
    case TokenType::kInt64:
      std::memcpy(out, from, count * sizeof(int64_t));
      return;
  }
}

}  // namespace keepstep::data
