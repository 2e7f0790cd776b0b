// An injected fault (`link-delay`): what this process sends to other nodes waits before it goes out.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace keepstep::comm::tcp {

// Any thread sets it; 0: no delay. Of the whole process, so that it outlives generations.
inline std::atomic<uint32_t> injected_delay_ms{0};

// Called before each write to a connection. It blocks the writer, as a full socket to a distant peer would.
inline void delay_if_injected() {
  if (const uint32_t ms = injected_delay_ms.load(std::memory_order_relaxed); ms != 0) {
    const timespec wait{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1'000'000};
    nanosleep(&wait, nullptr);
  }
}

}  // namespace keepstep::comm::tcp
