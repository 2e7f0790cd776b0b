// The shared pages of a node: one per worker incarnation, one per generation. Allocated by the agent, passed by fd.
//
// Who writes what:
//   WorkerPage.word       the worker by compare-and-swap; the agent sets the sealed bit (fetch_or), nothing else
//   WorkerPage.state      the worker
//   WorkerPage.progress   the worker; read by the agent only
//   WorkerPage.alive      locked by the worker's engine thread for its whole life; agents watch it
//   capsules              the worker; the agent copies a dead worker's capsules into its successor's page
//   log                   the worker; the agent reads it (log_ring.h)
//   GenerationPage        votes by its members; `interrupted` and `verdict` by the agent. Each node of a generation has
//                         one; leaders carry what the nodes have in common (node_vote.h)
// A page belongs to one incarnation or one generation and is never reused, so a late write of a worker that was
// declared dead lands where nobody reads any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/robust_mutex.h"
#include "brain/commit/digests.h"
#include "brain/types.h"
#include "comm/comm_config.h"
#include "rank/link/log_ring.h"
#include "rank/link/progress_words.h"
#include "state/hydration.h"

namespace keepstep::rank {

inline constexpr uint64_t kWorkerMagic = 0x3150'524b'5054'534b;      // "KSTPKRP1"
inline constexpr uint64_t kGenerationMagic = 0x3150'4e47'5054'534b;  // "KSTPGNP1"
inline constexpr size_t kCapsuleBytes = 1 << 20;
inline constexpr size_t kHeaderBytes = 4096;

// A rank's measurements in one step: the sum of its micro-batches' losses, and their number. Written before the vote on
// `step` and kept for two steps, so the loss of a committed step is known even if its rank died right afterwards.
struct LossSlot {
  std::atomic<uint64_t> step;
  std::atomic<double> sum;
  std::atomic<uint64_t> micro_batches;
};

// What a rank votes for in `step` (brain/commit/digests.h). Written before that vote, kept for two steps.
struct DigestSlot {
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> gradients;
  std::atomic<uint64_t> state;
};

// The values that forward changes on each rank (docs/design/step_commit.md), at version `version_plus_1 - 1`; 0: none
// yet.
struct CapsuleSlot {
  std::atomic<uint64_t> version_plus_1;
  std::atomic<uint64_t> bytes;
};

struct WorkerPage {
  uint64_t magic;
  uint32_t worker;
  uint32_t reserved;
  RobustMutex alive;
  alignas(64) std::atomic<uint64_t> word;
  std::atomic<uint64_t> state;
  alignas(64) LossSlot loss[2];
  CapsuleSlot capsule[2];
  ProgressWords progress;
  DigestSlot digest[2];
};
static_assert(sizeof(WorkerPage) <= kHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The layout of a worker's memory: header, two capsules, log, hydration channels, communicator arena.
struct WorkerLayout {
  explicit WorkerLayout(const comm::CommConfig& config)
      : hydration(kLog + kLogRingBytes),
        arena((hydration + state::region_bytes() + 4095) / 4096 * 4096),
        bytes((arena + comm::arena_bytes(config) + 4095) / 4096 * 4096) {}
  static size_t capsule(size_t slot) { return kHeaderBytes + slot * kCapsuleBytes; }
  static constexpr size_t kLog = kHeaderBytes + 2 * kCapsuleBytes;  // log_ring.h
  size_t hydration;
  size_t arena;
  size_t bytes;
};

// One of two vote cells; step s uses cell s % 2, and the last voter on step s + 1 clears it for step s + 2.
struct VoteCell {
  std::atomic<uint32_t> voted;
  std::atomic<uint32_t> flags;
};

// The decision on a step over all ranks of all nodes, for generations in which a rank cannot read every page: the mean
// loss, and the union of the flags of all votes.
struct MeanSlot {
  std::atomic<uint64_t> step;
  std::atomic<double> mean;
  std::atomic<uint32_t> flags;
};

struct GenerationPage {
  uint64_t magic;
  uint32_t term;
  uint32_t generation;
  uint32_t world;                             // members on this node
  uint32_t across;                            // 1: there are members on other nodes too
  alignas(64) std::atomic<uint32_t> sealing;  // by the agent, before it seals: for ranks that open their word meanwhile
  std::atomic<uint32_t> interrupted;          // by the agent, once all its members' words are sealed
  std::atomic<uint32_t> verdict_ready;        // 1: verdict_version is valid; 2: the job ends instead
  std::atomic<uint64_t> verdict_version;
  alignas(64) VoteCell cells[2];
  alignas(64) std::atomic<uint32_t> decided;  // the low 32 bits of the newest decided step
  std::atomic<uint32_t> formed;               // number of members here that are clean at the generation's version
  std::atomic<uint32_t> formed_everywhere;    // 1: all members of all nodes are clean; only if `across`
  alignas(64) std::atomic<uint32_t> bell;     // futex: rung after any change above that a rank may wait for
  std::atomic<uint32_t> sleepers;             // on `bell`
  alignas(64) MeanSlot mean[2];               // for even and odd steps; only if `across`
};
static_assert(sizeof(GenerationPage) <= kHeaderBytes);

inline void set_state(WorkerPage& page, brain::StateWord word) {
  page.state.store(brain::pack(word), std::memory_order_seq_cst);
}

void store_digest(WorkerPage& page, brain::Step step, const brain::StepDigest& digest);
// std::nullopt if the rank stored none for this step. Final once its vote on `step` was seen.
std::optional<brain::StepDigest> load_digest(const WorkerPage& page, brain::Step step);

// Written before `decided` (or the verdict) announces the step, so a reader who sees that finds it.
void store_mean(GenerationPage& page, brain::Step step, double mean, uint32_t flags);
// The union of the flags of all votes on `step`, once the step is decided or a verdict commits it.
uint32_t load_flags(const GenerationPage& page, brain::Step step);
// NaN: unknown here, or no rank recorded a loss.
double load_mean(const GenerationPage& page, brain::Step step);

// Change a word, then ring: a waiter sees either the change or the new bell, never neither.
void ring(GenerationPage& page);

// Sleeps until the bell differs from `seen` (read before the condition was checked), at most 100 ms.
void wait_bell(GenerationPage& page, uint32_t seen);

// Waits until `done` returns true; whatever makes it true must ring. False once the generation is interrupted.
template <typename Done>
bool wait_until(GenerationPage& page, Done done) {
  while (true) {
    const uint32_t seen = page.bell.load();
    if (done()) {
      return true;
    }
    if (page.interrupted.load() != 0) {
      return false;
    }
    wait_bell(page, seen);
  }
}

inline size_t generation_page_bytes(const comm::CommConfig& config) {
  return kHeaderBytes + comm::generation_bytes(config);
}

}  // namespace keepstep::rank
