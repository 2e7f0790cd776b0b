// A memfd, sealed against resizing and filled with real pages before anyone maps it: a full machine is an error
// here, never a SIGBUS later. It has no name, so nothing can stay behind in /dev/shm. Passed between processes by fd.
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

  // Allocates `bytes` (> 0) of zeros and maps them. `label` shows in /proc/PID/maps, nothing more. Takes some tenths of
  // a second a gigabyte; meanwhile `give_up`, if any, is asked now and then. RESOURCE_EXHAUSTED with the size and the
  // way out when memory or descriptors are short. ABORTED: given up.
  static StatusOr<SharedMemory> create(const std::string& label, size_t bytes,
                                       const std::function<bool()>& give_up = {});

  // Maps what a peer allocated and takes the fd. Refuses (INVALID_ARGUMENT) a file that is not sealed against
  // shrinking or is smaller than `min_bytes`: a stranger's fd must not be able to crash us.
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
