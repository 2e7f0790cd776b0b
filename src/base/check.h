// Assertions that stay on in every build, for what must never happen. Bad input from outside is never one of these.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KEEPSTEP_CHECK(condition, message)                                                         \
  do {                                                                                             \
    if (!(condition)) [[unlikely]] {                                                               \
      std::fprintf(stderr, "keepstep: %s:%d: %s (%s)\n", __FILE__, __LINE__, message, #condition); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)
