// Reads the health of this machine's GPUs from NVIDIA's management library (NVML), and judges it. The library comes
// with the driver and is loaded at run time; nothing is built against it. Tested with a stand-in library
// (tests/fake_nvml); never run on a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace keepstep::rank {

// A value that the driver does not report is that of a healthy GPU.
struct GpuReading {
  uint32_t index = 0;
  std::string uuid;
  std::string error;                // the driver returns an error other than "not supported": the GPU is lost
  uint64_t uncorrected_errors = 0;  // of its memory, since the driver was loaded
  bool pages_pending = false;       // pages with errors will be retired at the next reset
  bool rows_pending = false;        // rows of memory will be remapped at the next reset
  bool rows_failed = false;         // no spare row was left to remap to
  uint64_t slowed_by = 0;           // NVML's clock throttle reasons
  uint32_t temperature_c = 0;
  uint32_t slowdown_c = 0;  // the hardware slows down above it; 0: unknown
};

// KEEPSTEP_NVML_LIBRARY, else libnvidia-ml.so.1.
std::string nvml_library();

// One reading per GPU. NOT_FOUND: there is no such library, so no driver. INTERNAL: the library does not answer.
StatusOr<std::vector<GpuReading>> read_gpus(const std::string& library = nvml_library());

struct GpuFinding {
  std::string check;     // "gpu 3 (GPU-8f2c...)"
  std::string measured;  // for people
  std::string limit;     // likewise
  bool unfit = false;    // it may compute wrongly, or not at all: no rank should use it. false: it is only slow
  bool operator==(const GpuFinding&) const = default;
};
std::vector<GpuFinding> judge_gpus(const std::vector<GpuReading>& gpus);

}  // namespace keepstep::rank
