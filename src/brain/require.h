// Assertions of the brains: they stay on in every build, for what must never happen. (base/check.h is out of reach:
// brains include nothing but the standard library.)
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
