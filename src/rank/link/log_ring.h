// A rank's reports about its steps: commits, and values the user logged. A ring in the worker's memory that the agent
// empties now and then, so an ordinary step sends no message: after a sleep, a send costs more than the vote.
//
// One writer and one reader, in two processes. An entry exists only once `head` covers it, so a worker killed in
// mid-write leaves whole entries only. They outlive it, because the memory is the agent's. The reader keeps its
// position in its own memory and checks every length: whatever a broken worker wrote, reading it neither crashes nor
// reads outside the ring. Byte layout: docs/formats/pages.md.
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
// The longest text of one log entry: less than half the ring.
inline constexpr size_t kMaxLogTextBytes = 120'000;

// This rank committed `step`.
struct CommitRecord {
  brain::Step step = 0;
  brain::Identity identity;
  int64_t committed_ns = 0;  // CLOCK_MONOTONIC
  int64_t computed_ns = 0;   // the step's time without waiting for others; 0: unknown, the first of a generation
  bool has_loss = false;     // the rank recorded a loss: the next two fields are valid
  double loss_sum = 0;
  uint64_t micro_batches = 0;
  bool has_mean = false;  // with several nodes: the mean over all ranks is known
  double mean = 0;
  std::optional<brain::StepDigest> digest = std::nullopt;  // what it voted for, if it recorded one
};

// The shared part. Zeroed memory is an empty ring.
struct LogRingHeader {
  alignas(64) std::atomic<uint64_t> head;     // bytes ever written; set by the writer
  alignas(64) std::atomic<uint64_t> tail;     // bytes ever read; set by the reader, so the writer knows its room
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

  // Whether the longest entry fits now; commit() and log() require it.
  bool has_room();
  // Sleeps until the reader has emptied the ring, at most 100 ms.
  void wait_for_room();

  void commit(const CommitRecord& record);
  // `values`: a JSON object as text, at most kMaxLogTextBytes.
  void log(brain::Step step, std::string_view values);

 private:
  void append(uint32_t kind, std::string_view first, std::string_view second);
  void copy_in(uint64_t at, std::string_view bytes);

  LogRingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t head_ = 0;       // the value of header_->head
  uint64_t tail_seen_ = 0;  // header_->tail when it was last needed: that cache line belongs to the reader
};

// The agent's end. One thread.
class LogReader {
 public:
  using OnCommit = std::function<void(const CommitRecord&)>;
  using OnLog = std::function<void(brain::Step, std::string_view values)>;

  // Consumes all available entries, in order, each exactly once. INVALID_ARGUMENT: an invalid entry; it and all after
  // it were dropped, and reading continues with what is written from now on.
  Status collect(std::byte* memory, const OnCommit& on_commit, const OnLog& on_log);

 private:
  Status read(const std::byte* data, uint64_t head, const OnCommit& on_commit, const OnLog& on_log);
  uint64_t tail_ = 0;  // our own: the one in the ring only informs the writer
};

}  // namespace keepstep::rank
