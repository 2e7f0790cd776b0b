#include "state/device/cuda_driver.h"

#include <dlfcn.h>

namespace keepstep::state {

StatusOr<CudaDriver> CudaDriver::load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrFormat("CUDA's driver cannot be loaded: %s", dlerror()));
  }
  CudaDriver driver{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) {
      missing = name;
    }
  };
  find(driver.init, "cuInit");
  find(driver.device_get, "cuDeviceGet");
  find(driver.primary_context_retain, "cuDevicePrimaryCtxRetain");
  find(driver.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  find(driver.context_push, "cuCtxPushCurrent_v2");
  find(driver.context_pop, "cuCtxPopCurrent_v2");
  find(driver.stream_create, "cuStreamCreate");
  find(driver.stream_destroy, "cuStreamDestroy_v2");
  find(driver.stream_synchronize, "cuStreamSynchronize");
  find(driver.event_create, "cuEventCreate");
  find(driver.event_record, "cuEventRecord");
  find(driver.event_synchronize, "cuEventSynchronize");
  find(driver.event_destroy, "cuEventDestroy_v2");
  find(driver.host_alloc, "cuMemHostAlloc");
  find(driver.host_free, "cuMemFreeHost");
  find(driver.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(driver.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(driver.error_name, "cuGetErrorName");
  if (missing != nullptr) {
    dlclose(handle);
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has no %s: this driver is older than CUDA 11, or no driver of CUDA", library, missing));
  }
  if (Status started = driver.status(driver.init(0), "cuInit"); !started.ok()) {
    return absl::FailedPreconditionError(started.message());
  }
  return driver;
}

Status CudaDriver::status(Result result, const char* what) const {
  if (result == 0) {
    return absl::OkStatus();
  }
  const char* name = nullptr;
  if (error_name(result, &name) != 0 || name == nullptr) {
    name = "an unknown error";
  }
  return absl::InternalError(absl::StrFormat("%s: %s (%d)", what, name, result));
}

}  // namespace keepstep::state
