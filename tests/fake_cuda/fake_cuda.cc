// A CUDA driver without a GPU: the calls that src/state/device/cuda_driver.h looks up, over memory that the host cannot
// touch.
//
// A "device address" is in a mapping without any access rights, so that direct access crashes the process; the driver
// has a second mapping of the same pages. A copy happens late: not when it is started, but when somebody waits for its
// stream or event, so that code which reads a buffer too early finds 0xAA. As with the real driver, a call needs a
// current context, and copies are asynchronous only with pinned memory, so any other host memory is refused here.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kIllegalAddress = 700;
constexpr int kDevices = 2;

struct Stream {
  int device = 0;
  std::deque<std::function<void()>> queue;
  uint64_t started = 0;
  uint64_t done = 0;
};

struct Event {
  Stream* stream = nullptr;
  uint64_t after = 0;
};

struct Memory {
  std::byte* alias = nullptr;
  size_t bytes = 0;
  int device = 0;
};

std::mutex mutex;
std::map<uintptr_t, Memory> memories;  // by device address
std::map<uintptr_t, size_t> pinned;    // by host address
std::map<int, int> contexts;           // retained, by device
int live = 0;                          // streams, events, pinned blocks
int copies = 0;
int fail_from = 0;  // copies from this one on fail; 0 if none does
int in_flight_most = 0;
thread_local std::vector<int> current;  // devices whose contexts were pushed

void* context_of(int device) { return reinterpret_cast<void*>(uintptr_t(device) + 1); }

template <typename Map>
auto containing(Map& map, uintptr_t address) {
  auto found = map.upper_bound(address);
  return found == map.begin() ? map.end() : std::prev(found);
}

void run_until(Stream& stream, uint64_t number) {
  while (stream.done < number && !stream.queue.empty()) {
    stream.queue.front()();
    stream.queue.pop_front();
    ++stream.done;
  }
}

int start_copy(uintptr_t device_address, uintptr_t host, size_t bytes, void* to, bool to_host) {
  std::lock_guard lock(mutex);
  if (current.empty()) {
    return kInvalidContext;
  }
  Stream& stream = *static_cast<Stream*>(to);
  const auto memory = containing(memories, device_address);
  const auto block = containing(pinned, host);
  if (memory == memories.end() || device_address + bytes > memory->first + memory->second.bytes ||
      memory->second.device != stream.device || current.back() != stream.device) {
    return kIllegalAddress;
  }
  if (block == pinned.end() || host + bytes > block->first + block->second) {
    return kInvalidValue;
  }
  if (fail_from != 0 && ++copies >= fail_from) {
    return kIllegalAddress;
  }
  std::byte* there = memory->second.alias + (device_address - memory->first);
  std::byte* here = reinterpret_cast<std::byte*>(host);
  if (to_host) {
    std::memset(here, 0xAA, bytes);
  }
  stream.queue.emplace_back([=] { to_host ? std::memcpy(here, there, bytes) : std::memcpy(there, here, bytes); });
  ++stream.started;
  in_flight_most = std::max(in_flight_most, static_cast<int>(stream.queue.size()));
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }

int cuDeviceGet(int* device, int number) {
  *device = number;
  return number >= 0 && number < kDevices ? 0 : kInvalidDevice;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  std::lock_guard lock(mutex);
  ++contexts[device];
  *context = context_of(device);
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  std::lock_guard lock(mutex);
  --contexts[device];
  return 0;
}

int cuCtxPushCurrent_v2(void* context) {
  current.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return 0;
}

int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) {
    return kInvalidContext;
  }
  *context = context_of(current.back());
  current.pop_back();
  return 0;
}

int cuStreamCreate(void** stream, unsigned) {
  if (current.empty()) {
    return kInvalidContext;
  }
  std::lock_guard lock(mutex);
  *stream = new Stream{.device = current.back()};
  ++live;
  return 0;
}

int cuStreamSynchronize(void* stream) {
  std::lock_guard lock(mutex);
  run_until(*static_cast<Stream*>(stream), UINT64_MAX);
  return 0;
}

int cuStreamDestroy_v2(void* stream) {
  std::lock_guard lock(mutex);
  delete static_cast<Stream*>(stream);
  --live;
  return 0;
}

int cuEventCreate(void** event, unsigned) {
  std::lock_guard lock(mutex);
  *event = new Event;
  ++live;
  return 0;
}

int cuEventRecord(void* event, void* stream) {
  std::lock_guard lock(mutex);
  *static_cast<Event*>(event) = {static_cast<Stream*>(stream), static_cast<Stream*>(stream)->started};
  return 0;
}

int cuEventSynchronize(void* event) {
  std::lock_guard lock(mutex);
  if (Event& waited = *static_cast<Event*>(event); waited.stream != nullptr) {
    run_until(*waited.stream, waited.after);
  }
  return 0;
}

int cuEventDestroy_v2(void* event) {
  std::lock_guard lock(mutex);
  delete static_cast<Event*>(event);
  --live;
  return 0;
}

int cuMemHostAlloc(void** host, size_t bytes, unsigned) {
  if (current.empty()) {
    return kInvalidContext;
  }
  std::lock_guard lock(mutex);
  *host = ::operator new(bytes);
  pinned[reinterpret_cast<uintptr_t>(*host)] = bytes;
  ++live;
  return 0;
}

int cuMemFreeHost(void* host) {
  std::lock_guard lock(mutex);
  pinned.erase(reinterpret_cast<uintptr_t>(host));
  ::operator delete(host);
  --live;
  return 0;
}

int cuMemcpyDtoHAsync_v2(void* host, unsigned long long device, size_t bytes, void* stream) {
  return start_copy(device, reinterpret_cast<uintptr_t>(host), bytes, stream, true);
}

int cuMemcpyHtoDAsync_v2(unsigned long long device, const void* host, size_t bytes, void* stream) {
  return start_copy(device, reinterpret_cast<uintptr_t>(host), bytes, stream, false);
}

int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}

// ---- for tests ----

// Memory of a device, with the bytes at `content`; never freed.
void* fake_cuda_allocate(int device, const void* content, size_t bytes) {
  std::lock_guard lock(mutex);
  const int pages = memfd_create("fake_cuda", 0);
  if (pages < 0 || ftruncate(pages, static_cast<off_t>(bytes)) != 0) {
    return nullptr;
  }
  void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages, 0);
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, pages, 0);
  close(pages);
  std::memcpy(alias, content, bytes);
  memories[reinterpret_cast<uintptr_t>(address)] = {static_cast<std::byte*>(alias), bytes, device};
  return address;
}

// The bytes on the device.
const void* fake_cuda_look(const void* address) {
  std::lock_guard lock(mutex);
  return memories.at(reinterpret_cast<uintptr_t>(address)).alias;
}

void fake_cuda_fail_from(int copy) {
  std::lock_guard lock(mutex);
  copies = 0;
  fail_from = copy;
}

int fake_cuda_live() {
  std::lock_guard lock(mutex);
  return live;
}

int fake_cuda_contexts(int device) {
  std::lock_guard lock(mutex);
  return contexts[device];
}

int fake_cuda_in_flight_most() {
  std::lock_guard lock(mutex);
  return in_flight_most;
}

int fake_cuda_current_depth() { return static_cast<int>(current.size()); }
}
