// What the tests of hydration share: tensors with known bytes, and sources and targets in processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "base/shared_memory.h"
#include "state/hydration.h"

namespace keepstep::state::testing {

inline constexpr brain::Identity kIdentity{3, 7};
inline constexpr brain::Version kVersion = 118;

// A region as the agent makes it: zeroed shared memory that outlives the processes.
class SharedRegion {
 public:
  explicit SharedRegion(size_t bytes = region_bytes()) : memory_(SharedMemory::create("test", bytes).value()) {}
  std::byte* data() const { return memory_.data(); }
  // Words that tests use to coordinate.
  std::atomic<uint32_t>& word(size_t index) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_.data())[index];
  }

 private:
  SharedMemory memory_;
};

inline std::vector<SourceAccess> data_of(const std::vector<SharedRegion>& regions) {
  std::vector<SourceAccess> result;
  for (const SharedRegion& region : regions) {
    result.push_back({.region = region.data()});
  }
  return result;
}

// Tensors of the given sizes; each byte is derived from seed, entry and position.
class Tensors {
 public:
  Tensors(const std::vector<uint64_t>& sizes, uint64_t seed) {
    for (size_t entry = 0; entry < sizes.size(); ++entry) {
      std::vector<uint8_t> bytes(sizes[entry]);
      uint64_t state = seed * 1'000'003 + entry;
      for (uint8_t& byte : bytes) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        byte = static_cast<uint8_t>(state >> 56);
      }
      bytes_.push_back(std::move(bytes));
    }
  }
  std::vector<Region> regions() {
    std::vector<Region> result;
    for (std::vector<uint8_t>& bytes : bytes_) {
      result.push_back({bytes.data(), bytes.size()});
    }
    return result;
  }
  std::vector<uint8_t>& operator[](size_t entry) { return bytes_[entry]; }
  bool operator==(const Tensors&) const = default;

 private:
  std::vector<std::vector<uint8_t>> bytes_;
};

// A child process that runs `body` and exits with what it returns. Killed and reaped at the end of its scope.
class Process {
 public:
  explicit Process(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no process behind
      _exit(body());
    }
  }
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Process& operator=(Process&&) = delete;
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  // Its exit status, as waitpid(2) returns it.
  int wait() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// A device that calls hooks around each read. Its memory can be read in place.
class HookedCopy final : public DeviceCopy {
 public:
  // before(number of the read, from 1); after(the host's buffer, bytes, number).
  std::function<void(int)> before = [](int) {};
  std::function<void(std::byte*, size_t, int)> after = [](std::byte*, size_t, int) {};

  void read(void* host, const void* device, size_t bytes) override {
    const int number = ++reads_;
    before(number);
    std::memcpy(host, device, bytes);
    after(static_cast<std::byte*>(host), bytes, number);
  }
  void write(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  const void* host_view(const void* device) override { return device; }

 private:
  std::atomic<int> reads_{0};
};

// A process that publishes Tensors(sizes, seed) in `region` and serves them until it is killed.
struct SourceOptions {
  uint64_t seed = 1;
  brain::Identity identity = kIdentity;
  brain::Version version = kVersion;
  std::string manifest = "{}";
  const std::atomic<uint32_t>* interrupted = nullptr;
  DeviceCopy* copy = nullptr;  // HostCopy if null
};

inline Process source_process(const SharedRegion& region, const std::vector<uint64_t>& sizes,
                              const SourceOptions& options = {}) {
  return Process([&] {
    HostCopy host;
    Tensors tensors(sizes, options.seed);
    Source source(region.data(), options.copy != nullptr ? *options.copy : host, options.interrupted);
    if (!source.publish(options.identity, options.version, options.manifest, tensors.regions()).ok()) {
      return 1;
    }
    while (true) {
      pause();
    }
  });
}

// A state like that of a small model with Adam: large tensors, small ones, scalars, in the order torch gives them.
inline std::vector<uint64_t> model_sizes() {
  std::vector<uint64_t> sizes;
  for (int layer = 0; layer < 4; ++layer) {
    for (const uint64_t bytes : {1'000'000, 4'096, 300'004, 12}) {
      sizes.insert(sizes.end(), {bytes, 4, bytes, bytes});
    }
  }
  return sizes;
}

inline uint64_t sum_of(const std::vector<uint64_t>& sizes) {
  uint64_t sum = 0;
  for (const uint64_t bytes : sizes) {
    sum += bytes;
  }
  return sum;
}

// Expects that the pull succeeded and `mine` is what sources with seed 1 have. After a failed pull returns zeros, for
// as many sources as any test checks.
inline Pulled expect_all(const StatusOr<Pulled>& pulled, const Tensors& mine, const std::vector<uint64_t>& sizes) {
  EXPECT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(mine, Tensors(sizes, 1));
  return pulled.value_or(Pulled{.bytes_by_source = std::vector<uint64_t>(8)});
}

// Sources, and this process as their target, whose tensors differ at first.
struct Hydrated {
  explicit Hydrated(size_t count, std::vector<uint64_t> entries = model_sizes())
      : sizes(std::move(entries)), regions(count), mine(sizes, 99) {}

  void start(size_t at, const SourceOptions& options = {}) {
    sources.push_back(source_process(regions[at], sizes, options));
  }
  void start_all() {
    for (size_t at = 0; at < regions.size(); ++at) {
      start(at);
    }
  }
  StatusOr<Pulled> pull(bool compare = false, brain::Version version = kVersion, brain::Identity identity = kIdentity) {
    return Puller(data_of(regions), 0, *copy, interrupted).pull(identity, version, mine.regions(), compare);
  }
  Pulled pull_all(bool compare = false) { return expect_all(pull(compare), mine, sizes); }

  std::vector<uint64_t> sizes;
  std::vector<SharedRegion> regions;
  std::vector<Process> sources;
  Tensors mine;
  HostCopy host;
  DeviceCopy* copy = &host;
  const std::atomic<uint32_t>* interrupted = nullptr;
};

}  // namespace keepstep::state::testing
