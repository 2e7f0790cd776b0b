#include "rank/checks/gpu_health.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace keepstep::rank {
namespace {

using Device = void*;
// nvml.h; its values are part of the library's interface and do not change.
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr int kGpuSensor = 0;
constexpr int kSlowdownThreshold = 1;
constexpr std::array<std::pair<uint64_t, const char*>, 4> kSlowReasons = {{{0x08, "hardware slowdown"},
                                                                           {0x20, "software thermal slowdown"},
                                                                           {0x40, "hardware thermal slowdown"},
                                                                           {0x80, "power brake"}}};

struct Nvml {
  int (*init)();
  int (*shutdown)();
  const char* (*error_text)(int);
  int (*count)(unsigned*);
  int (*device)(unsigned, Device*);
  int (*uuid)(Device, char*, unsigned);
  int (*ecc_errors)(Device, int, int, unsigned long long*);
  // Newer or older than some drivers: null if the library lacks them.
  int (*pages_pending)(Device, int*);
  int (*remapped_rows)(Device, unsigned*, unsigned*, unsigned*, unsigned*);
  int (*slow_reasons)(Device, unsigned long long*);
  int (*temperature)(Device, int, unsigned*);
  int (*temperature_threshold)(Device, int, unsigned*);
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

GpuReading read_gpu(const Nvml& nvml, unsigned index) {
  GpuReading reading{.index = index};
  // Whether there is an answer; a feature that this kind of GPU lacks is not an error.
  const auto answered = [&](int result, const char* what) {
    if (result != kSuccess && result != kNotSupported && reading.error.empty()) {
      reading.error = absl::StrFormat("%s: %s", what, nvml.error_text(result));
    }
    return result == kSuccess;
  };
  Device device = nullptr;
  if (!answered(nvml.device(index, &device), "its handle")) {
    return reading;
  }
  char uuid[97] = {};
  if (answered(nvml.uuid(device, uuid, sizeof uuid - 1), "its id")) {
    reading.uuid = uuid;
  }
  unsigned long long number = 0;
  if (answered(nvml.ecc_errors(device, kUncorrected, kSinceDriverLoad, &number), "memory errors")) {
    reading.uncorrected_errors = number;
  }
  int pending = 0;
  if (nvml.pages_pending != nullptr && answered(nvml.pages_pending(device, &pending), "retired pages")) {
    reading.pages_pending = pending != 0;
  }
  std::array<unsigned, 4> rows{};
  if (nvml.remapped_rows != nullptr &&
      answered(nvml.remapped_rows(device, &rows[0], &rows[1], &rows[2], &rows[3]), "remapped rows")) {
    reading.rows_pending = rows[2] != 0;
    reading.rows_failed = rows[3] != 0;
  }
  if (nvml.slow_reasons != nullptr && answered(nvml.slow_reasons(device, &number), "clocks")) {
    reading.slowed_by = number;
  }
  unsigned degrees = 0;
  if (nvml.temperature != nullptr && answered(nvml.temperature(device, kGpuSensor, &degrees), "temperature")) {
    reading.temperature_c = degrees;
  }
  if (nvml.temperature_threshold != nullptr &&
      answered(nvml.temperature_threshold(device, kSlowdownThreshold, &degrees), "temperature limit")) {
    reading.slowdown_c = degrees;
  }
  return reading;
}

}  // namespace

std::string nvml_library() {
  const char* given = std::getenv("KEEPSTEP_NVML_LIBRARY");
  return given != nullptr && *given != '\0' ? given : "libnvidia-ml.so.1";
}

StatusOr<std::vector<GpuReading>> read_gpus(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(dlerror());
  }
  Nvml nvml{};
  const bool whole =
      find(handle, "nvmlInit_v2", nvml.init) && find(handle, "nvmlShutdown", nvml.shutdown) &&
      find(handle, "nvmlErrorString", nvml.error_text) && find(handle, "nvmlDeviceGetCount_v2", nvml.count) &&
      find(handle, "nvmlDeviceGetHandleByIndex_v2", nvml.device) && find(handle, "nvmlDeviceGetUUID", nvml.uuid) &&
      find(handle, "nvmlDeviceGetTotalEccErrors", nvml.ecc_errors);
  find(handle, "nvmlDeviceGetRetiredPagesPendingStatus", nvml.pages_pending);
  find(handle, "nvmlDeviceGetRemappedRows", nvml.remapped_rows);
  find(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.slow_reasons);
  find(handle, "nvmlDeviceGetTemperature", nvml.temperature);
  find(handle, "nvmlDeviceGetTemperatureThreshold", nvml.temperature_threshold);
  if (!whole) {
    dlclose(handle);
    return absl::NotFoundError(absl::StrFormat("%s is not NVIDIA's management library, or a very old one", library));
  }
  std::vector<GpuReading> readings;
  Status status;
  if (const int result = nvml.init(); result != kSuccess) {
    status = absl::InternalError(absl::StrFormat("the driver does not answer: %s", nvml.error_text(result)));
  } else {
    unsigned count = 0;
    if (const int counted = nvml.count(&count); counted != kSuccess) {
      status = absl::InternalError(absl::StrFormat("the number of GPUs: %s", nvml.error_text(counted)));
    }
    for (unsigned index = 0; status.ok() && index < count; ++index) {
      readings.push_back(read_gpu(nvml, index));
    }
    nvml.shutdown();
  }
  dlclose(handle);
  return status.ok() ? StatusOr<std::vector<GpuReading>>(std::move(readings)) : status;
}

std::vector<GpuFinding> judge_gpus(const std::vector<GpuReading>& gpus) {
  std::vector<GpuFinding> findings;
  for (const GpuReading& gpu : gpus) {
    const std::string name =
        gpu.uuid.empty() ? absl::StrFormat("gpu %d", gpu.index) : absl::StrFormat("gpu %d (%s)", gpu.index, gpu.uuid);
    const auto add = [&](const char* what, std::string measured, std::string limit, bool unfit) {
      findings.push_back({absl::StrFormat("%s: %s", name, what), std::move(measured), std::move(limit), unfit});
    };
    if (!gpu.error.empty()) {
      add("driver", gpu.error, "an answer", true);
    }
    if (gpu.uncorrected_errors > 0) {
      add("memory",
          absl::StrFormat("%d errors since the driver was loaded that could not be corrected", gpu.uncorrected_errors),
          "none", true);
    }
    if (gpu.rows_failed) {
      add("memory rows", "there was no spare row for a broken one; the GPU has to be exchanged", "all rows work", true);
    } else if (gpu.rows_pending || gpu.pages_pending) {
      add("memory rows", "broken ones are in use until the GPU is reset", "none", true);
    }
    for (const auto& [bit, reason] : kSlowReasons) {
      if ((gpu.slowed_by & bit) != 0) {
        add(reason, absl::StrFormat("it holds the clocks down, at %d degrees", gpu.temperature_c), "full clocks",
            false);
      }
    }
    if (gpu.slowdown_c > 0 && gpu.temperature_c >= gpu.slowdown_c) {
      add("temperature", absl::StrFormat("%d degrees", gpu.temperature_c),
          absl::StrFormat("below %d, where it slows down", gpu.slowdown_c), false);
    }
  }
  return findings;
}

}  // namespace keepstep::rank
