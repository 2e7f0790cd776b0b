#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/memory_available.h"

namespace keepstep {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) {
      munmap(data_, size_);
    }
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

namespace {

StatusOr<std::byte*> map(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return errno_status(absl::StrFormat("map %d bytes of shared memory", bytes));
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

namespace {

constexpr size_t kChunkBytes = size_t{256} << 20;

Status too_large(const std::string& label, size_t bytes, const char* why) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("shared memory '%s' needs %d bytes and the machine (or its memory cgroup) does not have them: "
                      "%s. Free memory, or use fewer ranks and spares on this node.",
                      label, bytes, why));
}

}  // namespace

StatusOr<SharedMemory> SharedMemory::create(const std::string& label, size_t bytes,
                                            const std::function<bool()>& give_up) {
  Fd fd(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return errno_status(
        absl::StrFormat("create shared memory '%s' (raise the limit on open files with `ulimit -n`?)", label));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_status(absl::StrFormat("size shared memory '%s' to %d bytes", label, bytes));
  }
  for (size_t done = 0; done < bytes; done += kChunkBytes) {
    if (give_up && give_up()) {
      return absl::AbortedError(absl::StrFormat("shared memory '%s' is not needed any more", label));
    }
    // Filling a memfd has no limit of its own: the kernel would kill processes before it returned an error.
    if (bytes - done > memory_available()) {
      return too_large(label, bytes, "less is available");
    }
    const size_t chunk = std::min(kChunkBytes, bytes - done);
    const int error = posix_fallocate(fd.get(), static_cast<off_t>(done), static_cast<off_t>(chunk));
    if (error != 0) {
      return too_large(label, bytes, strerror(error));
    }
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(absl::StrFormat("seal shared memory '%s'", label));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::byte * data, map(fd.get(), bytes));
  return SharedMemory(std::move(fd), data, bytes);
}

StatusOr<SharedMemory> SharedMemory::attach(Fd fd, size_t min_bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("refused a shared-memory descriptor that is not sealed against shrinking");
  }
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) {
    return errno_status("stat shared memory");
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes < min_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("refused shared memory of %d bytes where at least %d are needed", bytes, min_bytes));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::byte * data, map(fd.get(), bytes));
  return SharedMemory(std::move(fd), data, bytes);
}

}  // namespace keepstep
