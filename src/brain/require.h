// Assertions of the brains, for what must never happen: enabled in every build. (base/check.h is not available: brains
// include nothing but the standard library.)
#pragma once

#include <cstdio>
#include <cstdlib>

namespace keepstep::brain {

inline void require(bool condition, const char* message) {
  if (!condition) [[unlikely]] {
    std::fprintf(stderr, "keepstep brain: %s\n", message);
    std::abort();
  }
}

}  // namespace keepstep::brain
