// The memory that the server gives out: ranges of one memfd, in pages.
//
// The file is larger than the limit, so that holes between ranges never stand in the way; what is not given out has no
// pages. Nobody but this process can write to it. Any thread may call everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep::memory_server {

class Extents;

// A range that is in use; its memory returns to the system with it.
class Extent {
 public:
  Extent(std::shared_ptr<Extents> of, uint64_t at, uint64_t bytes) : of_(std::move(of)), at_(at), bytes_(bytes) {}
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;
  ~Extent();

  uint64_t at() const { return at_; }
  uint64_t bytes() const { return bytes_; }  // that were asked for; whole pages are taken
  Status read(std::span<std::byte> into) const;

 private:
  const std::shared_ptr<Extents> of_;
  const uint64_t at_;
  const uint64_t bytes_;
};

class Extents : public std::enable_shared_from_this<Extents> {
 public:
  using Available = std::function<uint64_t()>;
  static constexpr uint64_t kPage = 4096;
  // What is left to everything else on the machine: less than this is never taken.
  static constexpr uint64_t kReserve = uint64_t{256} << 20;

  static constexpr uint64_t kCheckEvery = uint64_t{64} << 20;  // bytes; less than the reserve

  // `limit`: bytes. `available`: what the machine can still provide (base/memory_available.h).
  static StatusOr<std::shared_ptr<Extents>> create(uint64_t limit, Available available);

  // Copies `bytes` (not empty) into new memory. RESOURCE_EXHAUSTED: the limit, or what the machine has; with numbers.
  StatusOr<std::shared_ptr<Extent>> hold(std::span<const std::byte> bytes);

  // A new descriptor of the whole file, for reading only.
  StatusOr<Fd> for_readers() const;

  uint64_t used() const;
  uint64_t limit() const { return limit_; }

 private:
  friend class Extent;
  Extents(Fd fd, uint64_t limit, uint64_t size, Available available);
  StatusOr<uint64_t> take(uint64_t bytes);
  Status too_little(uint64_t available) const;
  void give_back(uint64_t at, uint64_t bytes);

  const Fd fd_;
  const uint64_t limit_;
  const Available available_;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // bytes by offset; neighbours are joined
  uint64_t used_ = 0;
  uint64_t unchecked_ = kCheckEvery;  // bytes given out since available_ was asked
};

}  // namespace keepstep::memory_server
