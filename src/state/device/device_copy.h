// The seam between the state engine and the memory that holds the tensors: main memory, and devices whose memory the
// host cannot access (CUDA: cuda_copy.h), through blocks of host memory that make transfers fast.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include "base/status.h"

namespace keepstep::state {

inline constexpr int kMainMemory = -1;  // instead of a device number

// One thread's transfers with one device: a ring of blocks, several of which can have transfers under way. Transfers of
// one lane happen in the order in which they were started.
class DeviceLane {
 public:
  static constexpr size_t kBlocks = 8;
  static constexpr size_t kBlockBytes = size_t{64} << 10;

  virtual ~DeviceLane() = default;
  // kBlockBytes of host memory, owned by the lane.
  virtual std::byte* block(size_t index) = 0;
  // Starts a copy from or to [at, at + bytes) of a block. Several may be under way in one block.
  virtual void start_read(size_t block, size_t at, const void* device, size_t bytes) = 0;
  virtual void start_write(size_t block, size_t at, void* device, size_t bytes) = 0;
  // Waits for everything started on the block. False if any of it failed: then the block's bytes are meaningless.
  virtual bool finish(size_t block) = 0;
};

// Gives the lane back to its DeviceCopy, which must outlive it.
using LaneLease = std::unique_ptr<DeviceLane, std::function<void(DeviceLane*)>>;

class DeviceCopy {
 public:
  virtual ~DeviceCopy() = default;
  // Copies main memory; blocks until done. May be called from several threads at once.
  virtual void read(void* host, const void* memory, size_t bytes) = 0;
  virtual void write(void* memory, const void* host, size_t bytes) = 0;
  // Where the host can read `memory` in place, so that a checksum needs no copy; null if it cannot.
  virtual const void* host_view(const void* /*memory*/) { return nullptr; }

  // Makes device `number` ready for lanes. FAILED_PRECONDITION: this is impossible; the message has the reason. Any
  // thread.
  virtual Status open(int number) {
    return absl::FailedPreconditionError(absl::StrFormat("device %d: only main memory can be copied here", number));
  }
  // A lane for the calling thread, from an opened device; null if there is no memory for one more. Any thread.
  virtual LaneLease lane(int /*number*/) { return nullptr; }
};

class HostCopy final : public DeviceCopy {
 public:
  void read(void* host, const void* memory, size_t bytes) override { std::memcpy(host, memory, bytes); }
  void write(void* memory, const void* host, size_t bytes) override { std::memcpy(memory, host, bytes); }
  const void* host_view(const void* memory) override { return memory; }
};

}  // namespace keepstep::state
