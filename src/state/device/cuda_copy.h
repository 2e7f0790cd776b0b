// Copies in main memory, and to and from CUDA devices through pinned blocks and asynchronous copies.
//
// The driver is loaded, and a device's primary context retained, when a device is first opened; a worker without
// tensors on a GPU never does either. Each lane has its own stream, which waits for no other: code that publishes or
// pulls tensors first waits for the work of its own streams.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "state/device/cuda_driver.h"
#include "state/device/device_copy.h"

namespace keepstep::state {

class CudaCopy final : public DeviceCopy {
 public:
  explicit CudaCopy(std::string library = "libcuda.so.1");
  ~CudaCopy() override;  // all leases must have been returned

  void read(void* host, const void* memory, size_t bytes) override { std::memcpy(host, memory, bytes); }
  void write(void* memory, const void* host, size_t bytes) override { std::memcpy(memory, host, bytes); }
  const void* host_view(const void* memory) override { return memory; }

  Status open(int number) override;
  // A lane uses 512 KiB of pinned memory; a returned lane is reused.
  LaneLease lane(int number) override;

 private:
  class Lane;
  struct Device {
    CudaDriver::Device device = 0;
    CudaDriver::Context context = nullptr;
    std::vector<std::unique_ptr<Lane>> idle;
  };

  const std::string library_;
  std::mutex mutex_;
  std::optional<CudaDriver> driver_;
  std::map<int, Device> devices_;
};

}  // namespace keepstep::state
