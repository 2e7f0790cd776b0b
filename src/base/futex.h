// Waiting on a 32-bit word in shared memory (futex(2)), across processes.
//
// Any thread may call; the word must be mapped MAP_SHARED by all parties.
#pragma once

#include <atomic>
#include <cstdint>

namespace keepstep {

// Sleeps while `word` equals `expected`, until a wake or `timeout_ns` (< 0: no limit). May return spuriously.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns = -1);

// Wakes all sleepers on `word`; returns how many.
int futex_wake_all(const std::atomic<uint32_t>& word);

// Tells the core that we are spinning.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace keepstep
