// The seam between the state engine and the memory tensors live in: main memory now, CUDA through pinned staging later.
#pragma once

#include <cstddef>
#include <cstring>

namespace keepstep::state {

class DeviceCopy {
 public:
  virtual ~DeviceCopy() = default;
  // Device to host and back; blocks until done. May be called from several threads at once.
  virtual void read(void* host, const void* device, size_t bytes) = 0;
  virtual void write(void* device, const void* host, size_t bytes) = 0;
  // Where the host can read `device` in place, so that a checksum needs no copy; null where it cannot.
  virtual const void* host_view(const void* /*device*/) { return nullptr; }
};

class HostCopy final : public DeviceCopy {
 public:
  void read(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void write(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  const void* host_view(const void* device) override { return device; }
};

}  // namespace keepstep::state
