// A memfd, sealed against resizing and backed by real pages before anyone maps it: if memory is short, create() returns
// an error instead of a SIGBUS killing a process later. It has no name, so nothing can be left behind in /dev/shm.
// Processes pass it by file descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Allocates `bytes` (> 0) of zeros and maps them. `label` only appears in /proc/PID/maps. Takes a few tenths of a
  // second per gigabyte, and meanwhile polls `give_up` if there is one. RESOURCE_EXHAUSTED: memory or descriptors are
  // short; the message gives the size and the remedy. ABORTED: `give_up` returned true.
  static StatusOr<SharedMemory> create(const std::string& label, size_t bytes,
                                       const std::function<bool()>& give_up = {});

  // Maps memory that a peer allocated and takes ownership of the fd. Refuses (INVALID_ARGUMENT) a file that is not
  // sealed against shrinking or is smaller than `min_bytes`: a stranger's fd must not be able to crash us.
  static StatusOr<SharedMemory> attach(Fd fd, size_t min_bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  bool valid() const { return data_ != nullptr; }

 private:
  SharedMemory(Fd fd, std::byte* data, size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace keepstep
