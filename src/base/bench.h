// Helpers for the benchmark programs (bench_*.cc), which are single-threaded and leave all cleanup to process exit.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"

namespace keepstep {

[[noreturn]] inline void fail(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::exit(1);
}

inline void expect_ok(const Status& status) {
  if (!status.ok()) {
    fail(std::string(status.message()));
  }
}

template <class T>
T value_or_fail(StatusOr<T> value) {
  expect_ok(value.status());
  return *std::move(value);
}

inline uint64_t number_of(const std::string& word) { return std::strtoull(word.c_str(), nullptr, 10); }

// Zeroed memory whose pages are already populated. `sharing`: MAP_PRIVATE, or MAP_SHARED to share it with processes
// forked later.
inline std::byte* fresh_memory(size_t bytes, int sharing) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  KEEPSTEP_CHECK(memory != MAP_FAILED, "no memory for the benchmark");
  return static_cast<std::byte*>(memory);
}

inline double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace keepstep
