#include "base/memory_available.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace keepstep {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr const char* kMachine = "/proc/meminfo";

// The number after `key` in a file of "key value" lines, or the file's first number if `key` is empty.
uint64_t number_in(const fs::path& file, const std::string& key, uint64_t otherwise) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    if (!key.empty() && word != key) {
      in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
      continue;
    }
    uint64_t number = 0;
    if (key.empty()) {
      in.seekg(0);
    }
    return in >> number ? number : otherwise;  // "max" is not a number: no limit
  }
  return otherwise;
}

struct Cgroup {
  fs::path path;
  bool v2 = false;
  uint64_t limit() const { return number_in(path / (v2 ? "memory.max" : "memory.limit_in_bytes"), "", kNoLimit); }
  // Its limit minus the usage that cannot be reclaimed.
  uint64_t left() const {
    const uint64_t most = limit();
    if (most == kNoLimit) {
      return kNoLimit;
    }
    const uint64_t used = number_in(path / (v2 ? "memory.current" : "memory.usage_in_bytes"), "", 0);
    const char* cache_key = v2 ? "inactive_file" : "total_inactive_file";
    const uint64_t cache = std::min(used, number_in(path / "memory.stat", cache_key, 0));
    return most - std::min(most, used - cache);
  }
};

// The minimum over this process's memory cgroup and its ancestors (version 2, or version 1's memory controller).
template <typename Number>
uint64_t least_of_cgroups(const Number& number) {
  uint64_t least = kNoLimit;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const bool v2 = line.starts_with("0::");
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos || (!v2 && line.find(":memory:") == std::string::npos)) {
      continue;
    }
    const fs::path root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path path = root / fs::path(line.substr(colon + 1)).relative_path();; path = path.parent_path()) {
      least = std::min(least, number(Cgroup{path, v2}));
      if (path == root || !path.has_relative_path()) {
        break;
      }
    }
  }
  return least;
}

}  // namespace

uint64_t memory_available() {
  return std::min(number_in(kMachine, "MemAvailable:", kNoLimit / 1024) * 1024,
                  least_of_cgroups([](const Cgroup& group) { return group.left(); }));
}

uint64_t memory_total() {
  return std::min(number_in(kMachine, "MemTotal:", kNoLimit / 1024) * 1024,
                  least_of_cgroups([](const Cgroup& group) { return group.limit(); }));
}

}  // namespace keepstep
