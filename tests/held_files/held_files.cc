// For LD_PRELOAD: holds up a process before it gives a file a name that ends like the first line of
// $KEEPSTEP_HELD_FILES/which, as if the disk were slow, until somebody opens the FIFO $KEEPSTEP_HELD_FILES/gate for
// writing. Each held process leaves a file there, reached-PID-NUMBER, which contains the name. Without the gate nothing
// is held. The same holds for a process that fills memory of such a name (memfd_create) with pages.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

template <typename Function>
Function real(const char* name, Function) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void hold(const char* name) {
  static std::atomic<int> number = 0;
  const char* folder = std::getenv("KEEPSTEP_HELD_FILES");
  if (folder == nullptr) {
    return;
  }
  std::string end;
  std::ifstream which(std::string(folder) + "/which");
  if (!std::getline(which, end) || end.empty() || !std::string_view(name).ends_with(end)) {
    return;
  }
  const std::string gate = std::string(folder) + "/gate";
  if (access(gate.c_str(), F_OK) != 0) {
    return;
  }
  const std::string who = std::to_string(getpid()) + "-" + std::to_string(++number);
  const std::string mark = std::string(folder) + "/reached-" + who;
  const std::string unfinished = std::string(folder) + "/writes-" + who;
  std::ofstream(unfinished) << name;
  std::rename(unfinished.c_str(), mark.c_str());
  const int fd = open(gate.c_str(), O_RDONLY | O_CLOEXEC);  // waits
  if (fd >= 0) {
    close(fd);
  }
}

void hold_memory(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  char path[PATH_MAX] = {};
  if (readlink(link.c_str(), path, sizeof path - 1) > 0) {
    std::string name = path;  // /memfd:NAME (deleted)
    hold(name.substr(0, name.find(" (deleted)")).c_str());
  }
}

}  // namespace

extern "C" {

int posix_fallocate(int fd, off_t offset, off_t bytes) {
  static const auto next = real("posix_fallocate", &posix_fallocate);
  hold_memory(fd);
  return next(fd, offset, bytes);
}

int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  static const auto next = real("posix_fallocate64", &posix_fallocate64);
  hold_memory(fd);
  return next(fd, offset, bytes);
}

int link(const char* from, const char* to) noexcept {
  static const auto next = real("link", &link);
  hold(to);
  return next(from, to);
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = real("rename", &rename);
  hold(to);
  return next(from, to);
}

}  // extern "C"
