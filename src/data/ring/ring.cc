#include "data/ring/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "data/ring/ring_extent.h"

namespace keepstep::data {
namespace {

// Held while moving the tail or admitting a reader. Its owner may have died: each word it guards is consistent.
class Guard {
 public:
  explicit Guard(RobustMutex& mutex) : mutex_(mutex), locked_(mutex.lock()) {}
  ~Guard() { mutex_.release_after(locked_); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  RobustMutex& mutex_;
  RobustMutex::LockResult locked_;
};

void ring(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  futex_wake_all(word);
}

size_t control_bytes(uint64_t slots) { return kRingHeaderBytes + slots * sizeof(RingSlot); }

StatusOr<Fd> sparse_memory(uint64_t bytes) {
  Fd fd(memfd_create("keepstep-batches", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return errno_status("create the memory for batches (raise the limit on open files with `ulimit -n`?)");
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_status(absl::StrFormat("size the memory for batches to %d bytes (is `ulimit -f` set?)", bytes));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status("seal the memory for batches");
  }
  return fd;
}

}  // namespace

Status RingSpec::check() const {
  if (round == 0 || slots() > kMaxRingSlots) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a ring of %d + %d + %d batches; between 1 and %d are possible: lower ahead= or behind=", behind, round, ahead,
        kMaxRingSlots));
  }
  if (limit_bytes > kUnlimitedDataBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("limit_bytes=%d is more than %d", limit_bytes, kUnlimitedDataBytes));
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<RingOwner>> RingOwner::create(const RingSpec& spec, uint64_t start, uint64_t incarnation) {
  KEEPSTEP_RETURN_IF_ERROR(spec.check());
  const uint64_t limited = (spec.limit_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t data_bytes = spec.limit_bytes == 0 ? kUnlimitedDataBytes : limited;
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create("keepstep-ring", control_bytes(spec.slots())));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd data, sparse_memory(data_bytes + kRingErrorBytes));
  auto& control = *reinterpret_cast<RingControl*>(memory.data());
  if (!control.mutex.init()) {
    return absl::InternalError("cannot make a robust mutex");
  }
  control.incarnation = incarnation;
  control.start = start;
  control.data_bytes = data_bytes;
  control.limit_bytes = spec.limit_bytes;
  control.slots = static_cast<uint32_t>(spec.slots());
  control.behind = spec.behind;
  control.round = spec.round;
  control.readers = kRingReaders;
  control.head.store(start);
  control.tail.store(start);
  control.magic = kRingMagic;
  return std::unique_ptr<RingOwner>(new RingOwner(spec, std::move(memory), std::move(data)));
}

StatusOr<uint32_t> RingOwner::join(uint64_t position, pid_t pid) {
  RingControl& ring_control = control();
  const Guard guard(ring_control.mutex);
  const uint64_t tail = ring_control.tail.load();
  if (position < tail || position > head() + spec_.slots()) {
    return absl::OutOfRangeError(absl::StrFormat("item %d; the ring has those from %d to %d", position, tail, head()));
  }
  for (uint32_t row = 0; row < kRingReaders; ++row) {
    RingRow& each = ring_control.rows[row];
    if (each.used.load() == 0) {
      each.pid.store(static_cast<uint32_t>(pid));
      each.position.store(position);
      each.used.store(1, std::memory_order_release);
      ring(ring_control.space);  // if there was no reader before, the tail may move now
      return row;
    }
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d processes read these batches already, which is the most", kRingReaders));
}

void RingOwner::leave(uint32_t row) {
  if (row < kRingReaders) {
    control().rows[row].used.store(0, std::memory_order_release);
    ring(control().space);
  }
}

void RingOwner::set_loader(LoaderState state, std::string_view why) {
  RingControl& ring_control = control();
  if (!why.empty()) {
    const size_t bytes = std::min(why.size(), sizeof ring_control.why - 1);
    std::memcpy(ring_control.why, why.data(), bytes);
    ring_control.why[bytes] = 0;
  }
  ring_control.loader.store(static_cast<uint32_t>(state), std::memory_order_release);
  ring_bell();
}

LoaderState RingOwner::loader() const { return static_cast<LoaderState>(control().loader.load()); }

void RingOwner::ring_bell() { ring(control().bell); }

StatusOr<std::shared_ptr<RingMemory>> RingMemory::attach(Fd control, Fd data) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::attach(std::move(control), kRingHeaderBytes));
  const auto& header = *reinterpret_cast<const RingControl*>(memory.data());
  const uint64_t slots = header.slots;
  if (header.magic != kRingMagic || slots == 0 || slots > kMaxRingSlots || memory.size() < control_bytes(slots) ||
      header.readers != kRingReaders) {
    return absl::InvalidArgumentError("the memory is no ring of batches of this version of keepstep");
  }
  const int seals = fcntl(data.get(), F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(data.get(), &info) != 0) {
    return absl::InvalidArgumentError("refused memory for batches that is not sealed against shrinking");
  }
  const auto data_bytes = static_cast<uint64_t>(info.st_size);
  if (data_bytes < kRingErrorBytes) {
    return absl::InvalidArgumentError("the memory for batches is too small");
  }
  return std::shared_ptr<RingMemory>(new RingMemory(std::move(memory), std::move(data), data_bytes, slots));
}

RingSlot& RingMemory::slot(uint64_t number) const {
  return reinterpret_cast<RingSlot*>(memory_.data() + kRingHeaderBytes)[number % slots_];
}

LoaderState RingMemory::loader() const {
  return static_cast<LoaderState>(control().loader.load(std::memory_order_acquire));
}

std::string RingMemory::why() const {
  const char* text = control().why;
  return std::string(text, strnlen(text, sizeof control().why));
}

StatusOr<std::string> RingMemory::state_of(const RingSlot& slot) const {
  const RingSlot where = slot;  // one copy, which is checked and then used
  if (!inside(where, data_bytes_)) {
    return absl::DataLossError(absl::StrFormat("item %d of the ring: %d bytes at %d lie outside of the memory",
                                               where.number, where.batch_bytes, where.offset));
  }
  std::string state(where.state_bytes, 0);
  const uint64_t begin = where.offset + state_offset(where.batch_bytes);
  for (uint64_t done = 0; done < state.size();) {
    const ssize_t got = pread(data_.get(), state.data() + done, state.size() - done, static_cast<off_t>(begin + done));
    if (got <= 0) {
      return errno_status("read the loader's state from shared memory");
    }
    done += static_cast<uint64_t>(got);
  }
  return state;
}

}  // namespace keepstep::data
