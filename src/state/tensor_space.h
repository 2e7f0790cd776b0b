// All protected tensors in sequence, without gaps: one space of offsets, so that a chunk of 1 MiB carries one piece of
// a large tensor or hundreds of small ones at the same cost. Internal to src/state.
//
// Copies in and out return the XXH3 checksum of the tensors' bytes, computed from the tensors' own memory and never
// from the buffer of the copy: what was written to a device is read back from it. Where a copy from or to a device
// failed, the checksum is deliberately wrong, so that the chunk is requested elsewhere. Safe from several threads at
// once as long as they write to different offsets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "state/device/device_copy.h"
#include "state/hydration.h"

namespace keepstep::state {

class TensorSpace {
 public:
  TensorSpace() = default;

  // INVALID_ARGUMENT for an entry with bytes but no memory, or when the sum does not fit 64 bits.
  static StatusOr<TensorSpace> create(std::vector<Region> regions);

  // Makes every device that holds an entry ready; call before any copy. FAILED_PRECONDITION as in DeviceCopy::open.
  Status open_devices(DeviceCopy& copy) const;

  size_t entries() const { return regions_.size(); }
  uint64_t total_bytes() const { return starts_.back(); }
  uint64_t start(size_t entry) const { return starts_[entry]; }
  uint64_t bytes(size_t entry) const { return regions_[entry].bytes; }
  // XXH3 over the sizes, 8 bytes each: equal for two workers that protect the same shapes.
  uint64_t sizes_checksum() const;

  // Copies tensors to `host`, and back; [offset, offset + bytes) must be inside the space. Returns the checksum of
  // these bytes as they are in the tensors; for write(), after the copy.
  uint64_t read(DeviceCopy& copy, uint64_t offset, uint64_t bytes, std::byte* host) const;
  uint64_t write(DeviceCopy& copy, uint64_t offset, uint64_t bytes, const std::byte* host) const;

  // XXH3 of one entry. Asks `give_up` every few hundred microseconds; the value is meaningless once that returned true.
  uint64_t digest(DeviceCopy& copy, size_t entry, const std::function<bool()>& give_up) const;

  // "bytes 0 to 4095 of entry 3", or "entries 3 to 17" if the span touches several. For errors.
  std::string describe(uint64_t offset, uint64_t bytes) const;

 private:
  struct Piece {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    uint64_t at = 0;  // from the beginning of the span
    int device = kMainMemory;
  };

  size_t entry_at(uint64_t offset) const;
  // read(), write() and digest() for spans that touch a device: several blocks are in transit while one is hashed.
  class DeviceSpan;
  bool touches_device(uint64_t offset, uint64_t bytes) const;
  // Calls visit(memory, bytes, offset from `offset`, device) for each piece of one tensor, at most kBlockBytes long.
  template <typename Visit>
  void each_block(uint64_t offset, uint64_t bytes, Visit visit) const;

  std::vector<Region> regions_;
  bool any_device_ = false;
  std::vector<uint64_t> starts_{0};  // entries() + 1 of them
};

}  // namespace keepstep::state
