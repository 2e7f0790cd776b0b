#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/futex.h"
#include "base/memory_available.h"
#include "data/ring/ring.h"
#include "data/ring/ring_extent.h"

namespace keepstep::data {
namespace {

struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
};

Status write_at(int fd, const RingPiece& piece, uint64_t offset) {
  const char* from = static_cast<const char*>(piece.address);
  uint64_t at = offset + piece.offset;
  for (uint64_t left = piece.bytes; left > 0;) {
    const ssize_t written = pwrite(fd, from, left, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return errno_status(absl::StrFormat("write %d bytes of a batch into shared memory (is the machine full?)", left));
    }
    from += written;
    at += static_cast<uint64_t>(written);
    left -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<RingItem> RingWriter::last() const {
  const uint64_t number = head() - 1;
  if (head() == start() || head() == 0) {
    return std::nullopt;
  }
  const RingSlot& slot = memory_->slot(number);
  return RingItem{number, slot.epoch, slot.index, static_cast<ItemKind>(slot.kind), slot.batch_bytes, slot.state_bytes};
}

StatusOr<std::string> RingWriter::last_state() const {
  return last().has_value() ? memory_->state_of(memory_->slot(head() - 1)) : std::string();
}

std::optional<uint64_t> RingWriter::least_position() const {
  std::optional<uint64_t> least;
  for (const RingRow& row : memory_->control().rows) {
    if (row.used.load(std::memory_order_acquire) != 0) {
      // Pairs with the release in move_to: that reader's earlier reads are complete.
      const uint64_t position = row.position.load(std::memory_order_acquire);
      least = std::min(least.value_or(position), position);
    }
  }
  return least;
}

RingWriter::Bounds RingWriter::advance_tail() {
  RingControl& control = memory_->control();
  const RobustMutex::LockResult locked = control.mutex.lock();
  uint64_t tail = control.tail.load();
  const std::optional<uint64_t> least = least_position();
  if (least.has_value() && *least > control.behind) {
    tail = std::max(tail, *least - control.behind);
    control.tail.store(tail);
  }
  control.mutex.release_after(locked);
  return {tail, least};
}

// The lowest offset where `bytes` fit between the items held.
std::optional<uint64_t> RingWriter::find_gap(uint64_t bytes) const {
  const RingControl& control = memory_->control();
  std::vector<Extent> kept;
  for (uint64_t number = std::min(control.tail.load(), head()); number < head(); ++number) {
    const RingSlot& slot = memory_->slot(number);
    if (slot.kind != static_cast<uint32_t>(ItemKind::kSkipped) && inside(slot, memory_->data_bytes())) {
      kept.push_back({slot.offset, slot.offset + extent_bytes(slot.batch_bytes, slot.state_bytes)});
    }
  }
  std::sort(kept.begin(), kept.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  uint64_t begin = 0;
  for (const Extent& extent : kept) {
    if (extent.begin >= begin && extent.begin - begin >= bytes) {
      return begin;
    }
    begin = std::max(begin, extent.end);
  }
  const uint64_t end = memory_->data_bytes() - kRingErrorBytes;
  return begin <= end && bytes <= end - begin ? std::optional(begin) : std::nullopt;
}

Status RingWriter::no_room(uint64_t bytes) const {
  const RingControl& control = memory_->control();
  if (bytes > memory_->data_bytes() - kRingErrorBytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("batch %d takes %d bytes of shared memory, and limit_bytes=%d is the limit: raise the "
                        "limit, or make smaller batches",
                        head(), bytes, control.limit_bytes));
  }
  const uint64_t tail = control.tail.load();
  return absl::ResourceExhaustedError(
      absl::StrFormat("batch %d takes %d bytes of shared memory and finds no room within limit_bytes=%d: batches %d to "
                      "%d are kept, because the ranks are still in a round of %d batches that began after them and "
                      "behind= keeps %d more. Raise the limit, or lower behind=",
                      head(), bytes, control.limit_bytes, tail, head() - 1, control.round, control.behind));
}

void RingWriter::publish(const RingItem& item, uint64_t offset) {
  RingControl& control = memory_->control();
  const uint64_t number = head();
  RingSlot& slot = memory_->slot(number);
  slot = RingSlot{
      number, item.epoch, item.index, offset, item.batch_bytes, item.state_bytes, static_cast<uint32_t>(item.kind), {}};
  control.head.store(number + 1, std::memory_order_release);
  control.bell.fetch_add(1, std::memory_order_release);
  futex_wake_all(control.bell);
}

Status RingWriter::put(const RingItem& item, std::span<const RingPiece> pieces) {
  if (item.batch_bytes > kMaxItemBytes || item.state_bytes > kMaxItemBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat("batch %d has %d bytes", head(), item.batch_bytes));
  }
  RingControl& control = memory_->control();
  const uint64_t bytes = extent_bytes(item.batch_bytes, item.state_bytes);
  const bool last_word = item.kind == ItemKind::kError || item.kind == ItemKind::kEnd;
  if (bytes > (last_word ? kRingErrorBytes : memory_->data_bytes() - kRingErrorBytes)) {
    return no_room(bytes);
  }
  std::optional<uint64_t> offset;
  while (true) {
    const uint32_t seen = control.space.load(std::memory_order_acquire);
    const auto [tail, least] = advance_tail();
    if (head() < tail) {
      publish({.epoch = item.epoch, .index = item.index, .kind = ItemKind::kSkipped}, 0);
      return absl::OkStatus();
    }
    if (head() - tail < memory_->slots()) {
      offset = last_word ? memory_->data_bytes() - kRingErrorBytes : find_gap(bytes);
      if (offset.has_value()) {
        break;
      }
      if (least.has_value() && head() - std::min(head(), *least) < control.round) {
        return no_room(
            bytes);  // every reader is in this item's round: none will move on, and free any space, before it
      }
    }
    futex_wait(control.space, seen);
  }
  if (*offset + bytes > taken_) {
    // Memory that was never written is allocated now, and no call would fail before the kernel kills a process.
    if (bytes > memory_available()) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "batch %d needs %d bytes of shared memory, and the machine does not have them: lower ahead= or "
          "behind=, or make smaller batches",
          head(), bytes));
    }
    taken_ = *offset + bytes;
  }
  for (const RingPiece& piece : pieces) {
    if (piece.offset > bytes || piece.bytes > bytes - piece.offset) {
      return absl::InvalidArgumentError("a piece of a batch that lies outside of it");
    }
    KEEPSTEP_RETURN_IF_ERROR(write_at(memory_->data_fd(), piece, *offset));
  }
  publish(item, *offset);
  return absl::OkStatus();
}

}  // namespace keepstep::data
