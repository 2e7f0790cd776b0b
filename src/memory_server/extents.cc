#include "memory_server/extents.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

namespace keepstep::memory_server {
namespace {

uint64_t pages(uint64_t bytes) { return (bytes + Extents::kPage - 1) / Extents::kPage * Extents::kPage; }

uint64_t mib(uint64_t bytes) { return bytes >> 20; }

Status write_all(int fd, uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("the machine (or its memory cgroup) has no memory for %d bytes more of checkpoints: %s",
                          bytes.size(), errno_status("write").message()));
    }
    at += static_cast<uint64_t>(done);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return absl::OkStatus();
}

}  // namespace

Extent::~Extent() { of_->give_back(at_, pages(bytes_)); }

Status Extent::read(std::span<std::byte> into) const {
  uint64_t at = at_;
  into = into.first(std::min<size_t>(into.size(), bytes_));
  while (!into.empty()) {
    const ssize_t got = pread(of_->fd_.get(), into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return errno_status("read memory of checkpoints");
    }
    at += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<Extents>> Extents::create(uint64_t limit, Available available) {
  Fd fd(memfd_create("keepstep-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return errno_status("create the memory of checkpoints");
  }
  const uint64_t size = pages(2 * limit) + (uint64_t{1} << 30);
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(absl::StrFormat("size the memory of checkpoints to %d bytes", size));
  }
  return std::shared_ptr<Extents>(new Extents(std::move(fd), limit, size, std::move(available)));
}

Extents::Extents(Fd fd, uint64_t limit, uint64_t size, Available available)
    : fd_(std::move(fd)), limit_(limit), available_(std::move(available)), free_({{0, size}}) {}

StatusOr<Fd> Extents::for_readers() const {
  Fd fd(open(absl::StrFormat("/proc/self/fd/%d", fd_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return errno_status("open the memory of checkpoints for a reader (raise the limit on open files?)");
  }
  return fd;
}

uint64_t Extents::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

Status Extents::too_little(uint64_t available) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the machine (or its memory cgroup) has %d MiB of memory left, of which the memory server (%d MiB used, limit %d "
      "MiB) leaves %d MiB to others",
      mib(available), mib(used_), mib(limit_), mib(kReserve)));
}

StatusOr<uint64_t> Extents::take(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_ || used_ > limit_ - bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the memory server is full: %d MiB of its limit of %d MiB are used, and %d KiB more are needed",
                        mib(used_), mib(limit_), bytes >> 10));
  }
  if (unchecked_ + bytes > kCheckEvery) {
    unchecked_ = kCheckEvery;  // asked again next time, unless there is enough
    const uint64_t available = available_();
    if (available < bytes + kReserve) {
      return too_little(available);
    }
    unchecked_ = 0;
  }
  unchecked_ += bytes;
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each.second >= bytes; });
  if (found == free_.end()) {
    return absl::ResourceExhaustedError("the memory server's memory is in too many pieces; restart it");
  }
  const auto [at, size] = *found;
  free_.erase(found);
  if (size > bytes) {
    free_[at + bytes] = size - bytes;
  }
  used_ += bytes;
  return at;
}

void Extents::give_back(uint64_t at, uint64_t bytes) {
  // Before others can be given it.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                  static_cast<off_t>(bytes));
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  auto next = free_.lower_bound(at);
  if (next != free_.end() && at + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    if (const auto before = std::prev(next); before->first + before->second == at) {
      before->second += bytes;
      return;
    }
  }
  free_[at] = bytes;
}

StatusOr<std::shared_ptr<Extent>> Extents::hold(std::span<const std::byte> bytes) {
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t at, take(pages(bytes.size())));
  auto extent = std::make_shared<Extent>(shared_from_this(), at, bytes.size());
  KEEPSTEP_RETURN_IF_ERROR(write_all(fd_.get(), at, bytes));
  return extent;
}

}  // namespace keepstep::memory_server
