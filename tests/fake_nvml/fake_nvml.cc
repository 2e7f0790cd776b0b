// NVIDIA's management library without a GPU: the calls that src/rank/checks/gpu_health.cc looks up. The environment
// gives their answers: FAKE_NVML="gpus=2 1.ecc=3 1.temperature=95"; without it there is one healthy GPU. N.lost=1: GPU
// N's calls fail; N.old=1: it does not support half of them; init=999: the driver does not answer.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>

namespace {

std::map<std::string, int> values;
int started = 0;

int value(const std::string& name, int standard) {
  const auto found = values.find(name);
  return found == values.end() ? standard : found->second;
}

int of(void* device, const char* name, int standard = 0) {
  return value(std::to_string(reinterpret_cast<intptr_t>(device) - 1) + "." + name, standard);
}

// 15: the GPU has fallen off the bus; 3: not supported.
int failure(void* device, bool new_call = false) {
  return started == 0 ? 1 : of(device, "lost") != 0 ? 15 : new_call && of(device, "old") != 0 ? 3 : 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  values.clear();
  const char* text = std::getenv("FAKE_NVML");
  std::istringstream in(text == nullptr ? "" : text);
  for (std::string word; in >> word;) {
    const size_t at = word.find('=');
    values[word.substr(0, at)] = std::stoi(word.substr(at + 1));
  }
  if (const int result = value("init", 0); result != 0) {
    return result;
  }
  ++started;
  return 0;
}

int nvmlShutdown() {
  --started;
  return 0;
}

const char* nvmlErrorString(int result) { return result == 15 ? "GPU is lost" : "Unknown Error"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(value("gpus", 1));
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<intptr_t>(index) + 1);
  return failure(*device);
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-%04d", static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1);
  return failure(device);
}

int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  // Corrected errors, and those of the GPU's whole life, are not what we ask for.
  *count = static_cast<unsigned long long>(type == 1 && counter == 0 ? of(device, "ecc") : 777);
  return failure(device, true);
}

int nvmlDeviceGetRetiredPagesPendingStatus(void* device, int* pending) {
  *pending = of(device, "pages");
  return failure(device, true);
}

int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = 4;
  *uncorrected = 2;
  *pending = static_cast<unsigned>(of(device, "rows"));
  *failed = static_cast<unsigned>(of(device, "rows_failed"));
  return failure(device, true);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = static_cast<unsigned long long>(of(device, "reasons", 1));  // 1: idle
  return failure(device, true);
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* degrees) {
  *degrees = sensor == 0 ? static_cast<unsigned>(of(device, "temperature", 40)) : 0;
  return failure(device);
}

int nvmlDeviceGetTemperatureThreshold(void* device, int type, unsigned* degrees) {
  *degrees = type == 1 ? 90 : 100;
  return failure(device, true);
}

}  // extern "C"
