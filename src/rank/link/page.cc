#include "rank/link/page.h"

#include <limits>

#include "base/futex.h"

namespace keepstep::rank {

void store_digest(WorkerPage& page, brain::Step step, const brain::StepDigest& digest) {
  DigestSlot& slot = page.digest[step % 2];
  slot.step = 0;  // a reader never combines the step of one with the digest of another
  slot.gradients = digest.gradients;
  slot.state = digest.state;
  slot.step = step;
}

std::optional<brain::StepDigest> load_digest(const WorkerPage& page, brain::Step step) {
  const DigestSlot& slot = page.digest[step % 2];
  if (slot.step.load() != step) {
    return std::nullopt;
  }
  return brain::StepDigest{slot.gradients.load(), slot.state.load()};
}

void store_mean(GenerationPage& page, brain::Step step, double mean, uint32_t flags) {
  MeanSlot& slot = page.mean[step % 2];
  slot.step = 0;  // a reader never combines the step of one with the mean of another
  slot.mean = mean;
  slot.flags = flags;
  slot.step = step;
}

uint32_t load_flags(const GenerationPage& page, brain::Step step) {
  if (page.across == 0) {
    return page.cells[step % 2].flags.load();  // every vote put its flags there before it counted
  }
  const MeanSlot& slot = page.mean[step % 2];
  return slot.step.load() == step ? slot.flags.load() : 0;
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

}  // namespace keepstep::rank
