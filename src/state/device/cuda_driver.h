// The few calls of the CUDA driver that copies need, looked up at run time: keepstep is built without CUDA, links none
// of it, and runs where there is none. Their binary interface is stable: names with _v2 never change their meaning.
//
// It uses the driver and not torch, because the engine's threads copy while Python waits, without the GIL. Torch's
// tensors live in each device's primary context, which the driver gives to any caller, so their addresses are valid
// here too.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace keepstep::state {

struct CudaDriver {
  using Result = int;  // 0: success
  using Device = int;
  using Context = void*;
  using Stream = void*;
  using Event = void*;
  using Address = unsigned long long;

  // Loads `library` and starts the driver; it stays loaded forever. FAILED_PRECONDITION: not found, or no device.
  static StatusOr<CudaDriver> load(const std::string& library);

  // OK for 0, otherwise INTERNAL with `what` and CUDA's name for the error.
  Status status(Result result, const char* what) const;

  Result (*init)(unsigned flags);
  Result (*device_get)(Device* device, int number);
  Result (*primary_context_retain)(Context* context, Device device);
  Result (*primary_context_release)(Device device);
  Result (*context_push)(Context context);
  Result (*context_pop)(Context* context);
  Result (*stream_create)(Stream* stream, unsigned flags);
  Result (*stream_destroy)(Stream stream);
  Result (*stream_synchronize)(Stream stream);
  Result (*event_create)(Event* event, unsigned flags);
  Result (*event_record)(Event event, Stream stream);
  Result (*event_synchronize)(Event event);
  Result (*event_destroy)(Event event);
  Result (*host_alloc)(void** host, size_t bytes, unsigned flags);
  Result (*host_free)(void* host);
  Result (*copy_to_host)(void* host, Address device, size_t bytes, Stream stream);
  Result (*copy_to_device)(Address device, const void* host, size_t bytes, Stream stream);
  Result (*error_name)(Result result, const char** name);
};

}  // namespace keepstep::state
