#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/futex.h"
#include "data/ring/ring.h"
#include "data/ring/ring_extent.h"

namespace keepstep::data {

// The live views of a process. Shared with the views, which may outlive the reader.
struct RingView::Views {
  std::mutex mutex;
  std::vector<RingView*> held;
};

RingView::RingView(std::shared_ptr<Views> views, RingItem item, std::byte* data, size_t mapped)
    : views_(std::move(views)), item_(item), data_(data), mapped_(mapped) {
  const std::lock_guard lock(views_->mutex);
  views_->held.push_back(this);
}

RingView::~RingView() {
  {
    const std::lock_guard lock(views_->mutex);
    std::erase(views_->held, this);
  }
  if (mapped_ > 0) {
    munmap(data_, mapped_);
  }
}

// A write that changes nothing makes the kernel copy the page. Atomic: another thread may be writing into the batch.
void RingView::detach() {
  if (!detached_) {
    for (size_t at = 0; at < mapped_; at += kPageBytes) {
      __atomic_fetch_or(reinterpret_cast<uint8_t*>(data_ + at), 0, __ATOMIC_RELAXED);
    }
    detached_ = true;
  }
}

StatusOr<std::unique_ptr<RingReader>> RingReader::create(std::shared_ptr<RingMemory> memory, uint32_t row) {
  if (row >= kRingReaders) {
    return absl::InvalidArgumentError(absl::StrFormat("row %d of a ring with %d", row, kRingReaders));
  }
  if (sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes)) {
    return absl::UnimplementedError(absl::StrFormat("a machine with pages of %d bytes", sysconf(_SC_PAGESIZE)));
  }
  return std::unique_ptr<RingReader>(new RingReader(std::move(memory), row));
}

RingReader::RingReader(std::shared_ptr<RingMemory> memory, uint32_t row)
    : memory_(std::move(memory)),
      row_(memory_->control().rows[row]),
      pid_(row_.pid.load()),
      position_(row_.position.load()),
      views_(std::make_shared<RingView::Views>()) {}

RingReader::~RingReader() { detach(); }

void RingReader::detach() { detach_before(std::numeric_limits<uint64_t>::max()); }

bool RingReader::joined() const { return row_.used.load(std::memory_order_acquire) != 0 && row_.pid.load() == pid_; }

void RingReader::detach_before(uint64_t number) {
  const std::lock_guard lock(views_->mutex);
  for (RingView* view : views_->held) {
    if (view->item_.number < number) {
      view->detach();
    }
  }
}

Status RingReader::move_to(uint64_t position) {
  RingControl& control = memory_->control();
  if (position == position_) {
    return absl::OkStatus();
  }
  if (position < position_) {
    const RobustMutex::LockResult locked = control.mutex.lock();
    const bool there = position >= control.tail.load();
    if (there) {
      row_.position.store(position, std::memory_order_release);
    }
    control.mutex.release_after(locked);
    if (!there) {
      return absl::OutOfRangeError(absl::StrFormat("item %d is not in the ring any more", position));
    }
    position_ = position;
    return absl::OkStatus();
  }
  detach_before(position - std::min<uint64_t>(position, control.behind));
  row_.position.store(position, std::memory_order_release);
  position_ = position;
  control.space.fetch_add(1, std::memory_order_release);
  futex_wake_all(control.space);
  return absl::OkStatus();
}

std::optional<ItemKind> RingReader::newest() const {
  const uint64_t published = head();
  if (published == memory_->control().start) {
    return std::nullopt;
  }
  return static_cast<ItemKind>(memory_->slot(published - 1).kind);
}

void RingReader::wait(uint32_t seen) const { futex_wait(memory_->control().bell, seen); }

StatusOr<RingSlot> RingReader::slot(uint64_t number) const {
  const RingControl& control = memory_->control();
  const uint64_t kept = position_ - std::min<uint64_t>(position_, control.behind);
  // Our row keeps the tail from passing `kept`; the tail may have been beyond it already when we joined.
  const uint64_t first = std::max(kept, control.tail.load(std::memory_order_acquire));
  if (number < first || number >= head()) {
    return absl::OutOfRangeError(
        absl::StrFormat("item %d; this process may read those from %d to %d", number, first, head()));
  }
  const RingSlot slot = memory_->slot(number);
  if (slot.number != number || slot.kind > static_cast<uint32_t>(ItemKind::kEnd) ||
      !inside(slot, memory_->data_bytes())) {
    return absl::DataLossError(
        absl::StrFormat("item %d of the ring was written over: its slot says item %d, kind %d, "
                        "%d bytes at %d",
                        number, slot.number, slot.kind, slot.batch_bytes, slot.offset));
  }
  return slot;
}

StatusOr<RingItem> RingReader::item(uint64_t number) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const RingSlot found, slot(number));
  return RingItem{number,           found.epoch, found.index, static_cast<ItemKind>(found.kind), found.batch_bytes,
                  found.state_bytes};
}

StatusOr<std::shared_ptr<RingView>> RingReader::view(uint64_t number) {
  KEEPSTEP_ASSIGN_OR_RETURN(const RingItem found, item(number));
  const RingSlot& where = memory_->slot(number);
  std::byte* data = nullptr;
  const size_t mapped = (found.batch_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (mapped > 0) {
    void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory_->data_fd(),
                         static_cast<off_t>(where.offset));
    if (address == MAP_FAILED) {
      return errno_status(absl::StrFormat("map %d bytes of a batch (are too many kept? see vm.max_map_count)", mapped));
    }
    data = static_cast<std::byte*>(address);
  }
  return std::shared_ptr<RingView>(new RingView(views_, found, data, mapped));
}

StatusOr<std::string> RingReader::state(uint64_t number) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const RingSlot found, slot(number));
  return memory_->state_of(found);
}

}  // namespace keepstep::data
