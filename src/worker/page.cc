#include "worker/page.h"

#include "base/futex.h"

namespace keepstep::worker {

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
