#include "state/device/cuda_copy.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace keepstep::state {
namespace {

constexpr unsigned kStreamNonBlocking = 1;      // does not wait for the default stream
constexpr unsigned kEventBlockingNoTiming = 3;  // a waiting thread sleeps
constexpr unsigned kHostAllocPortable = 1;      // pinned for all contexts

// Makes a context current in the calling thread for one scope; then restores the previous one, which torch may rely on.
class ContextScope {
 public:
  ContextScope(const CudaDriver& driver, CudaDriver::Context context)
      : driver_(driver), result_(driver.context_push(context)) {}
  ~ContextScope() {
    if (result_ == 0) {
      CudaDriver::Context ours = nullptr;
      (void)driver_.context_pop(&ours);
    }
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  CudaDriver::Result result() const { return result_; }

 private:
  const CudaDriver& driver_;
  const CudaDriver::Result result_;
};

}  // namespace

class CudaCopy::Lane final : public DeviceLane {
 public:
  Lane(const CudaDriver& driver, CudaDriver::Context context) : driver_(driver), context_(context) {}
  ~Lane() override {
    const ContextScope scope(driver_, context_);
    if (stream_ != nullptr) {
      (void)driver_.stream_synchronize(stream_);
    }
    for (CudaDriver::Event event : events_) {
      if (event != nullptr) {
        (void)driver_.event_destroy(event);
      }
    }
    if (stream_ != nullptr) {
      (void)driver_.stream_destroy(stream_);
    }
    if (memory_ != nullptr) {
      (void)driver_.host_free(memory_);
    }
  }

  Status prepare() {
    const ContextScope scope(driver_, context_);
    KEEPSTEP_RETURN_IF_ERROR(driver_.status(scope.result(), "cuCtxPushCurrent"));
    KEEPSTEP_RETURN_IF_ERROR(driver_.status(driver_.host_alloc(&memory_, kBlocks * kBlockBytes, kHostAllocPortable),
                                            "cuMemHostAlloc of 512 KiB"));
    KEEPSTEP_RETURN_IF_ERROR(driver_.status(driver_.stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate"));
    for (CudaDriver::Event& event : events_) {
      KEEPSTEP_RETURN_IF_ERROR(driver_.status(driver_.event_create(&event, kEventBlockingNoTiming), "cuEventCreate"));
    }
    return absl::OkStatus();
  }

  std::byte* block(size_t index) override { return static_cast<std::byte*>(memory_) + index * kBlockBytes; }

  void start_read(size_t index, size_t at, const void* device, size_t bytes) override {
    start(index, "a copy from the device", [&] {
      return driver_.copy_to_host(block(index) + at, reinterpret_cast<CudaDriver::Address>(device), bytes, stream_);
    });
  }

  void start_write(size_t index, size_t at, void* device, size_t bytes) override {
    start(index, "a copy to the device", [&] {
      return driver_.copy_to_device(reinterpret_cast<CudaDriver::Address>(device), block(index) + at, bytes, stream_);
    });
  }

  bool finish(size_t index) override {
    const ContextScope scope(driver_, context_);
    note(index, scope.result(), "cuCtxPushCurrent");
    note(index, driver_.event_synchronize(events_[index]), "a copy");
    return !std::exchange(failed_[index], false);
  }

 private:
  template <typename Call>
  void start(size_t index, const char* what, Call call) {
    const ContextScope scope(driver_, context_);
    note(index, scope.result(), "cuCtxPushCurrent");
    note(index, call(), what);
    note(index, driver_.event_record(events_[index], stream_), "cuEventRecord");
  }

  void note(size_t index, CudaDriver::Result result, const char* what) {
    if (result == 0) {
      return;
    }
    failed_[index] = true;
    if (!std::exchange(told_, true)) {  // once a device failed, every later copy on it fails
      spdlog::error("state: {}", driver_.status(result, what).ToString());
    }
  }

  const CudaDriver& driver_;
  const CudaDriver::Context context_;
  void* memory_ = nullptr;
  CudaDriver::Stream stream_ = nullptr;
  std::array<CudaDriver::Event, kBlocks> events_{};
  std::array<bool, kBlocks> failed_{};
  bool told_ = false;
};

CudaCopy::CudaCopy(std::string library) : library_(std::move(library)) {}

CudaCopy::~CudaCopy() {
  for (auto& [number, device] : devices_) {
    device.idle.clear();
    (void)driver_->primary_context_release(device.device);
  }
}

Status CudaCopy::open(int number) {
  std::lock_guard lock(mutex_);
  if (devices_.contains(number)) {
    return absl::OkStatus();
  }
  if (!driver_.has_value()) {
    KEEPSTEP_ASSIGN_OR_RETURN(driver_, CudaDriver::load(library_));
  }
  Device device;
  Status status = driver_->status(driver_->device_get(&device.device, number), "cuDeviceGet");
  if (status.ok()) {
    status =
        driver_->status(driver_->primary_context_retain(&device.context, device.device), "cuDevicePrimaryCtxRetain");
  }
  if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrFormat("CUDA device %d: %s", number, status.message()));
  }
  devices_.emplace(number, std::move(device));
  return absl::OkStatus();
}

LaneLease CudaCopy::lane(int number) {
  std::unique_lock lock(mutex_);
  const auto found = devices_.find(number);
  KEEPSTEP_CHECK(found != devices_.end(), "a lane of a device that was not opened");
  Device& device = found->second;  // a stable reference: a map's nodes do not move
  const auto give_back = [this, &device](DeviceLane* lane) {
    std::lock_guard again(mutex_);
    device.idle.emplace_back(static_cast<Lane*>(lane));
  };
  if (!device.idle.empty()) {
    std::unique_ptr<Lane> lane = std::move(device.idle.back());
    device.idle.pop_back();
    return {lane.release(), give_back};
  }
  lock.unlock();
  auto lane = std::make_unique<Lane>(*driver_, device.context);
  if (Status status = lane->prepare(); !status.ok()) {
    spdlog::error("state: CUDA device {}: {}", number, status.ToString());
    return nullptr;
  }
  return {lane.release(), give_back};
}

}  // namespace keepstep::state
