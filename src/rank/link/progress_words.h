// A worker's progress: words in its page that the agent samples (docs/design/hangs.md). Each is one relaxed store by
// the worker; nothing ever waits for them, and only hang detection uses them.
#pragma once

#include <atomic>
#include <cstdint>

#include "brain/detect/progress.h"
#include "comm/progress.h"

namespace keepstep::rank {

struct ProgressWords {
  // Step in bits 63..24, micro-batch in 23..8 (65535: that one or a later one), brain::StepPhase in 7..0.
  alignas(64) std::atomic<uint64_t> place;
  std::atomic<uint32_t> waits_in;     // brain::WaitsIn: what the main thread waits in other than collectives and votes
  std::atomic<uint32_t> slow;         // number of run.slow sections that it is in
  std::atomic<uint64_t> committed;    // the newest step of this generation whose update has finished; 0: none
  std::atomic<int64_t> committed_ns;  // when, CLOCK_MONOTONIC
  comm::CollectiveWords collectives;
};

inline uint64_t pack_place(brain::Step step, uint64_t micro_batch, brain::StepPhase phase) {
  return step << 24 | (micro_batch < 0xffff ? micro_batch : 0xffff) << 8 | static_cast<uint64_t>(phase);
}

// While it exists, the words report that the main thread waits in `what`.
class Waiting {
 public:
  Waiting(ProgressWords& words, brain::WaitsIn what) : words_(words) {
    words_.waits_in.store(static_cast<uint32_t>(what), std::memory_order_relaxed);
  }
  ~Waiting() { words_.waits_in.store(0, std::memory_order_relaxed); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  ProgressWords& words_;
};

}  // namespace keepstep::rank
