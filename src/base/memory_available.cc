#include "base/memory_available.h"

#include <fstream>
#include <limits>
#include <string>

namespace keepstep {

uint64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    uint64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) {
      return kib * 1024;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<uint64_t>::max();
}

}  // namespace keepstep
