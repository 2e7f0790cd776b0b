// For LD_PRELOAD: counts every system call that changes something below a folder; at one of them the process is killed,
// or the call fails. Nothing happens before crash_points_arm.
//
// "after": the call is made, then SIGKILL. "half": a write writes half of its bytes, then SIGKILL (other calls as
// "after"). "fail": the call and all later ones of its kind fail with `error` and change nothing.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace {

enum Mode { kAfter = 0, kHalf = 1, kFail = 2 };

char root[PATH_MAX];
std::atomic<long> counted = 0;
long armed_at = 0;  // 0 if not armed
Mode mode = kAfter;
int error_number = 0;

template <typename Function>
Function real(const char* name, Function) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool below(const char* path) { return armed_at != 0 && std::strncmp(path, root, std::strlen(root)) == 0; }

bool below(int fd) {
  if (armed_at == 0) {
    return false;
  }
  char link[64];
  char path[PATH_MAX] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return readlink(link, path, sizeof path - 1) > 0 && below(path);
}

// Whether this is the call to crash at.
bool is_it() {
  const long now = ++counted;
  return mode == kFail ? now >= armed_at : now == armed_at;
}

void die() {
  raise(SIGKILL);
  for (;;) {
    pause();
  }
}

template <typename Result, typename Call>
Result counted_call(bool relevant, bool frees, Call call) {
  if (!relevant) {
    return call();
  }
  const bool now = is_it();
  if (now && mode == kFail && !frees) {  // a full disk still lets one free space
    errno = error_number;
    return -1;
  }
  const Result result = call();
  if (now && mode != kFail) {
    die();
  }
  return result;
}

}  // namespace

extern "C" {

void crash_points_arm(const char* folder, long at, int how, int error) {
  std::strncpy(root, folder, sizeof root - 1);
  counted = 0;
  mode = static_cast<Mode>(how);
  error_number = error;
  armed_at = at;
}

long crash_points_counted() { return counted; }

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t permissions = va_arg(arguments, mode_t);
  va_end(arguments);
  static const auto next = real("open", &open);
  return counted_call<int>((flags & O_CREAT) != 0 && below(path), false,
                           [&] { return next(path, flags, permissions); });
}

ssize_t write(int fd, const void* bytes, size_t count) {
  static const auto next = real("write", &write);
  const bool relevant = below(fd);
  if (relevant && mode == kHalf && counted + 1 == armed_at) {
    next(fd, bytes, count / 2);
    die();
  }
  return counted_call<ssize_t>(relevant, false, [&] { return next(fd, bytes, count); });
}

int fsync(int fd) {
  static const auto next = real("fsync", &fsync);
  return counted_call<int>(below(fd), false, [&] { return next(fd); });
}

int ftruncate(int fd, off_t length) noexcept {
  static const auto next = real("ftruncate", &ftruncate);
  return counted_call<int>(below(fd), false, [&] { return next(fd, length); });
}

int fallocate(int fd, int how, off_t offset, off_t length) {
  static const auto next = real("fallocate", &fallocate);
  return counted_call<int>(below(fd), false, [&] { return next(fd, how, offset, length); });
}

int link(const char* from, const char* to) noexcept {
  static const auto next = real("link", &link);
  return counted_call<int>(below(to), false, [&] { return next(from, to); });
}

int mkdir(const char* path, mode_t permissions) noexcept {
  static const auto next = real("mkdir", &mkdir);
  return counted_call<int>(below(path), false, [&] { return next(path, permissions); });
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = real("rename", &rename);
  return counted_call<int>(below(to), false, [&] { return next(from, to); });
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  static const auto next = real("renameat2", &renameat2);
  return counted_call<int>(below(to), false, [&] { return next(from_fd, from, to_fd, to, flags); });
}

int rmdir(const char* path) noexcept {
  static const auto next = real("rmdir", &rmdir);
  return counted_call<int>(below(path), true, [&] { return next(path); });
}

int unlink(const char* path) noexcept {
  static const auto next = real("unlink", &unlink);
  return counted_call<int>(below(path), true, [&] { return next(path); });
}

}  // extern "C"
