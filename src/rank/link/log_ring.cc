#include "rank/link/log_ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/futex.h"

namespace keepstep::rank {
namespace {

constexpr uint32_t kCommit = 1;
constexpr uint32_t kLog = 2;
constexpr uint32_t kHasLoss = 1;
constexpr uint32_t kHasMean = 2;
constexpr uint32_t kHasDigest = 4;

struct EntryHeader {
  uint32_t kind;
  uint32_t bytes;  // of the body
};
static_assert(sizeof(EntryHeader) == 8);

struct CommitBody {
  uint64_t step;
  uint32_t term;
  uint32_t generation;
  int64_t committed_ns;
  int64_t computed_ns;
  uint32_t flags;
  uint32_t reserved;
  double loss_sum;
  uint64_t micro_batches;
  double mean;
  uint64_t gradients;  // digests
  uint64_t state;
};
static_assert(sizeof(CommitBody) == 80);

// Entries begin at multiples of 8, so a reader never finds half of another entry in their place.
constexpr uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

constexpr uint64_t kMaxEntryBytes = sizeof(EntryHeader) + sizeof(brain::Step) + padded(kMaxLogTextBytes);
static_assert(2 * kMaxEntryBytes <= kLogRingDataBytes);

void copy_out(const std::byte* data, uint64_t at, void* to, size_t bytes) {
  const size_t offset = at % kLogRingDataBytes;
  const size_t first = std::min(bytes, kLogRingDataBytes - offset);
  std::memcpy(to, data + offset, first);
  std::memcpy(static_cast<std::byte*>(to) + first, data, bytes - first);
}

}  // namespace

void LogWriter::copy_in(uint64_t at, std::string_view bytes) {
  if (bytes.empty()) {
    return;  // an empty view may have no address
  }
  const size_t offset = at % kLogRingDataBytes;
  const size_t first = std::min(bytes.size(), kLogRingDataBytes - offset);
  std::memcpy(data_ + offset, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, bytes.size() - first);
}

bool LogWriter::has_room() {
  const auto fits = [this] { return head_ + kMaxEntryBytes - tail_seen_ <= kLogRingDataBytes; };
  if (!fits()) {
    tail_seen_ = header_->tail.load(std::memory_order_acquire);
  }
  return fits();
}

void LogWriter::append(uint32_t kind, std::string_view first, std::string_view second) {
  KEEPSTEP_CHECK(has_room(), "an entry for a log without room");
  const EntryHeader entry{kind, static_cast<uint32_t>(first.size() + second.size())};
  copy_in(head_, {reinterpret_cast<const char*>(&entry), sizeof entry});
  copy_in(head_ + sizeof entry, first);
  copy_in(head_ + sizeof entry + first.size(), second);
  head_ += sizeof entry + padded(entry.bytes);
  header_->head.store(head_, std::memory_order_release);
}

void LogWriter::commit(const CommitRecord& record) {
  const brain::StepDigest digest = record.digest.value_or(brain::StepDigest{});
  const CommitBody body{
      .step = record.step,
      .term = record.identity.term,
      .generation = record.identity.generation,
      .committed_ns = record.committed_ns,
      .computed_ns = record.computed_ns,
      .flags = (record.has_loss ? kHasLoss : 0) | (record.has_mean ? kHasMean : 0) | (record.digest ? kHasDigest : 0),
      .reserved = 0,
      .loss_sum = record.loss_sum,
      .micro_batches = record.micro_batches,
      .mean = record.mean,
      .gradients = digest.gradients,
      .state = digest.state};
  append(kCommit, {reinterpret_cast<const char*>(&body), sizeof body}, {});
}

void LogWriter::log(brain::Step step, std::string_view values) {
  KEEPSTEP_CHECK(values.size() <= kMaxLogTextBytes, "a log entry longer than allowed");
  append(kLog, {reinterpret_cast<const char*>(&step), sizeof step}, values);
}

void LogWriter::wait_for_room() {
  constexpr int64_t kBoundNs = 100'000'000;  // the interval at which the agent looks on its own
  // Read before the tail: the reader moves the tail first, then changes `emptied`.
  const uint32_t seen = header_->emptied.load();
  header_->waiting.store(1);
  if (!has_room()) {
    futex_wait(header_->emptied, seen, kBoundNs);
  }
  header_->waiting.store(0);
}

Status LogReader::read(const std::byte* data, uint64_t head, const OnCommit& on_commit, const OnLog& on_log) {
  while (tail_ != head) {
    EntryHeader entry;
    copy_out(data, tail_, &entry, sizeof entry);
    const uint64_t there = head - tail_ - sizeof entry;
    if (padded(entry.bytes) > there) {
      return absl::InvalidArgumentError(
          absl::StrFormat("an entry of %d bytes in its log where %d are", entry.bytes, there));
    }
    if (entry.kind == kCommit && entry.bytes == sizeof(CommitBody)) {
      CommitBody body;
      copy_out(data, tail_ + sizeof entry, &body, sizeof body);
      on_commit({.step = body.step,
                 .identity = {body.term, body.generation},
                 .committed_ns = body.committed_ns,
                 .computed_ns = body.computed_ns,
                 .has_loss = (body.flags & kHasLoss) != 0,
                 .loss_sum = body.loss_sum,
                 .micro_batches = body.micro_batches,
                 .has_mean = (body.flags & kHasMean) != 0,
                 .mean = body.mean,
                 .digest = (body.flags & kHasDigest) == 0
                               ? std::nullopt
                               : std::optional(brain::StepDigest{body.gradients, body.state})});
    } else if (entry.kind == kLog && entry.bytes >= sizeof(brain::Step) &&
               entry.bytes <= sizeof(brain::Step) + kMaxLogTextBytes) {
      brain::Step step;
      copy_out(data, tail_ + sizeof entry, &step, sizeof step);
      std::string values(entry.bytes - sizeof step, '\0');
      copy_out(data, tail_ + sizeof entry + sizeof step, values.data(), values.size());
      on_log(step, values);
    } else {
      return absl::InvalidArgumentError(
          absl::StrFormat("an entry of kind %d with %d bytes in its log", entry.kind, entry.bytes));
    }
    tail_ += sizeof entry + padded(entry.bytes);
  }
  return absl::OkStatus();
}

Status LogReader::collect(std::byte* memory, const OnCommit& on_commit, const OnLog& on_log) {
  auto& header = *reinterpret_cast<LogRingHeader*>(memory);
  const uint64_t head = header.head.load(std::memory_order_acquire);
  if (head == tail_) {
    return absl::OkStatus();
  }
  Status status;
  if (head - tail_ > kLogRingDataBytes || (head - tail_) % 8 != 0) {
    status = absl::InvalidArgumentError(absl::StrFormat("its log ends at byte %d, after %d", head, tail_));
    tail_ = head;
  } else if (status = read(memory + 4096, head, on_commit, on_log); !status.ok()) {
    tail_ = head;
  }
  header.tail.store(tail_, std::memory_order_release);
  header.emptied.fetch_add(1);
  if (header.waiting.load() != 0) {
    futex_wake_all(header.emptied);
  }
  return status;
}

}  // namespace keepstep::rank
