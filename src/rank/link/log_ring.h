// What a rank reports of its steps: commits, and what the user logged. A ring in the worker's memory that the agent
// empties now and then, so that an ordinary step sends no message: after a sleep a send costs more than the vote.
//
// One writer, one reader, in two processes. An entry is there once `head` says so and not before, so a worker that is
// killed in the middle of a write leaves whole entries only; they outlive it, because the memory is the agent's. The
// reader keeps its place in memory of its own and believes no length that it did not check: whatever a broken worker
// wrote, reading it neither crashes nor reads outside of the ring. Byte layout: docs/formats/pages.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "brain/commit/digests.h"
#include "brain/types.h"

namespace keepstep::rank {

inline constexpr size_t kLogRingDataBytes = 256 * 1024;  // a power of two
inline constexpr size_t kLogRingBytes = 4096 + kLogRingDataBytes;
// The longest text of one log entry: less than half of the ring.
inline constexpr size_t kMaxLogTextBytes = 120'000;

// This rank committed `step`.
struct CommitRecord {
  brain::Step step = 0;
  brain::Identity identity;
  int64_t committed_ns = 0;  // CLOCK_MONOTONIC
  int64_t computed_ns = 0;   // of the step's time without waiting for others; 0: a generation's first, not known
  bool has_loss = false;     // the rank recorded one: then the next two count
  double loss_sum = 0;
  uint64_t micro_batches = 0;
  bool has_mean = false;  // with several nodes: the mean over all ranks is known
  double mean = 0;
  std::optional<brain::StepDigest> digest = std::nullopt;  // what it voted for, if it said
};

// The shared part. Zeroed memory is an empty ring.
struct LogRingHeader {
  alignas(64) std::atomic<uint64_t> head;     // bytes ever written; the writer's
  alignas(64) std::atomic<uint64_t> tail;     // bytes ever read; the reader's, for the writer to know its room
  std::atomic<uint32_t> emptied;              // futex: counts how often the reader made room
  alignas(64) std::atomic<uint32_t> waiting;  // 1: the writer sleeps on `emptied`
};
static_assert(sizeof(LogRingHeader) <= 4096);

// The worker's end. One thread at a time.
class LogWriter {
 public:
  LogWriter() = default;
  explicit LogWriter(std::byte* memory)
      : header_(reinterpret_cast<LogRingHeader*>(memory)), data_(memory + 4096), head_(header_->head.load()) {}

  // Whether the longest entry fits now; each of the two below needs that.
  bool has_room();
  // Sleeps until the reader took what is there, at most 100 ms.
  void wait_for_room();

  void commit(const CommitRecord& record);
  // `values`: a JSON object as text, at most kMaxLogTextBytes.
  void log(brain::Step step, std::string_view values);

 private:
  void append(uint32_t kind, std::string_view first, std::string_view second);
  void copy_in(uint64_t at, std::string_view bytes);

  LogRingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t head_ = 0;       // what header_->head says
  uint64_t tail_seen_ = 0;  // what header_->tail said when we last needed to know: the line is the reader's
};

// The agent's end. One thread.
class LogReader {
 public:
  using OnCommit = std::function<void(const CommitRecord&)>;
  using OnLog = std::function<void(brain::Step, std::string_view values)>;

  // Takes all entries that are there, in order, each exactly once. INVALID_ARGUMENT: what is there is no entry; it and
  // all behind it were dropped, and reading goes on with what is written from now on.
  Status collect(std::byte* memory, const OnCommit& on_commit, const OnLog& on_log);

 private:
  Status read(const std::byte* data, uint64_t head, const OnCommit& on_commit, const OnLog& on_log);
  uint64_t tail_ = 0;  // ours: the one in the ring only tells the writer
};

}  // namespace keepstep::rank
