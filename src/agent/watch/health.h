// Whether a node is fit for training: what is measured regularly, what is wrong with it, and when it gives up.
//
// Measuring (`measure_health`, HealthWatch) is separate from judging (`judge_health`, NodeFitness), which is pure. The
// checks that a worker runs on itself before it joins are in python/keepstep/torch/recovery/health.py.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rank/checks/gpu_health.h"

namespace keepstep::agent {

struct FolderReading {
  std::string path;
  uint64_t free_bytes = 0;
  double write_s = 0;  // for 4 KiB, with fsync
  std::string error;   // of the write; empty if none
};

struct HealthReading {
  uint64_t memory_available_bytes = 0;
  std::vector<FolderReading> folders;
  std::vector<rank::GpuReading> gpus;
  std::string gpu_error;  // the driver's; empty if none, or no driver
  int64_t monotonic_ns = 0;
  int64_t wall_ns = 0;  // since the epoch, at the same instant
};

struct HealthLimits {
  uint64_t memory_bytes = uint64_t{64} << 20;
  uint64_t disk_bytes = uint64_t{64} << 20;
  double write_s = 10;
  double clock_jump_s = 2;  // of the wall clock against the monotonic one, between two readings
};

// One thing that is wrong.
struct HealthFinding {
  std::string check;     // "memory", "disk DIR", "clock", "gpu N (...): memory"
  std::string measured;  // for display, with its unit
  std::string limit;     // likewise
  bool operator==(const HealthFinding&) const = default;
};

// `before`: the previous reading, if there was one.
std::vector<HealthFinding> judge_health(const HealthReading& now, const std::optional<HealthReading>& before,
                                        const HealthLimits& limits = {});

// Writes and removes a small file in each of `folders`, and asks NVIDIA's driver if there is one; it may have to wait
// for both. Errors are part of the reading.
HealthReading measure_health(const std::vector<std::string>& folders);

// Measures in its own thread, every `interval_s`, beginning at once: a disk may hang, and an agent must not.
class HealthWatch {
 public:
  // `report` is called from that thread, and never after the destructor has begun. The destructor does not wait for a
  // measurement that hangs.
  HealthWatch(std::vector<std::string> folders, double interval_s, std::function<void(HealthReading)> report);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // When the current measurement began, in nanoseconds of the monotonic clock; 0 if none is in progress.
  int64_t measuring_since_ns() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Counts workers that failed their check before they could join.
class NodeFitness {
 public:
  static constexpr int kMaxInARow = 3;
  // A worker failed. True: that many failed in a row, and the node will get no more ranks.
  bool failed() { return ++in_a_row_ >= kMaxInARow; }
  // A worker passed.
  void passed() { in_a_row_ = 0; }

 private:
  int in_a_row_ = 0;
};

}  // namespace keepstep::agent
