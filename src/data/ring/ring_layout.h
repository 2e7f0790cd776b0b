// The layout of a ring's control memory: docs/formats/data_ring.md has the table and says who writes what, and when.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/robust_mutex.h"

namespace keepstep::data {

inline constexpr uint64_t kRingMagic = 0x3147525450454b4b;  // "KKEPTRG1" in memory order
inline constexpr uint32_t kRingReaders = 64;
inline constexpr uint64_t kMaxRingSlots = uint64_t{1} << 16;
inline constexpr size_t kRingHeaderBytes = 4096;
inline constexpr size_t kPageBytes = 4096;
inline constexpr uint64_t kRingErrorBytes = uint64_t{128} << 10;     // reserved for the loader's last error
inline constexpr uint64_t kUnlimitedDataBytes = uint64_t{64} << 40;  // of address space in a sparse file

// The state of a ring's loader, as the agent sees it.
enum class LoaderState : uint32_t {
  kNone = 0,
  kStarting = 1,  // a rank was told to start one
  kRuns = 2,
  kGivenUp = 3,  // there will be none; `why` has the reason
};

enum class ItemKind : uint32_t {
  kSkipped = 0,  // nobody needs it: no bytes are stored
  kBatch = 1,
  kError = 2,  // the bytes are text: what the loader raised
  kEnd = 3,    // the loader has no more
};

struct RingRow {
  std::atomic<uint32_t> used;
  std::atomic<uint32_t> pid;
  std::atomic<uint64_t> position;
};

struct RingSlot {
  uint64_t number;
  uint64_t epoch;
  uint64_t index;  // in its epoch
  uint64_t offset;
  uint64_t batch_bytes;
  uint64_t state_bytes;  // after the batch, at the next multiple of 64
  uint32_t kind;
  uint32_t reserved[3];
};
static_assert(sizeof(RingSlot) == 64);

struct RingControl {
  uint64_t magic;
  uint64_t incarnation;
  uint64_t start;
  uint64_t data_bytes;  // for batches; kRingErrorBytes follow
  uint64_t limit_bytes;
  uint32_t slots;
  uint32_t behind;
  uint32_t round;
  uint32_t readers;
  alignas(64) RobustMutex mutex;
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint32_t> bell;
  alignas(64) std::atomic<uint32_t> space;
  alignas(64) std::atomic<uint32_t> loader;
  char why[508];
  alignas(1024) RingRow rows[kRingReaders];
};
static_assert(offsetof(RingControl, mutex) == 64 && offsetof(RingControl, head) == 128);
static_assert(offsetof(RingControl, bell) == 192 && offsetof(RingControl, space) == 256);
static_assert(offsetof(RingControl, loader) == 320 && offsetof(RingControl, rows) == 1024);
static_assert(sizeof(RingRow) == 16 && sizeof(RingControl) <= kRingHeaderBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace keepstep::data
