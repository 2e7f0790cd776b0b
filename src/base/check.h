// Assertions that stay on in every build, for conditions that must never occur. Never use them for bad outside input.
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
