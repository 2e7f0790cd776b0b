#include "worker/page.h"

#include <limits>

#include "base/futex.h"

namespace keepstep::worker {

void store_mean(GenerationPage& page, brain::Step step, double mean) {
  MeanSlot& slot = page.mean[step % 2];
  slot.step = 0;  // a reader never takes the step of one and the mean of another
  slot.mean = mean;
  slot.step = step;
}

double load_mean(const GenerationPage& page, brain::Step step) {
  const MeanSlot& slot = page.mean[step % 2];
  return slot.step.load() == step ? slot.mean.load() : std::numeric_limits<double>::quiet_NaN();
}

void ring(GenerationPage& page) {
  page.bell.fetch_add(1);
  if (page.sleepers.load() != 0) {
    futex_wake_all(page.bell);
  }
}

void wait_bell(GenerationPage& page, uint32_t seen) {
  constexpr int64_t kBoundNs = 100'000'000;  // belt and braces: a lost wake-up costs this much, not the job
  page.sleepers.fetch_add(1);
  futex_wait(page.bell, seen, kBoundNs);
  page.sleepers.fetch_sub(1);
}

}  // namespace keepstep::worker
