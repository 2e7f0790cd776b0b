#include "agent/watch/agent_faults.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>

namespace keepstep::agent {

void kill_this_process() {
  kill(getpid(), SIGKILL);
  std::abort();
}

StatusOr<std::optional<pid_t>> stop_this_process(std::optional<std::chrono::duration<double>> seconds) {
  const pid_t self = getpid();
  std::optional<pid_t> waker;
  if (seconds.has_value()) {
    const double whole = std::chrono::floor<std::chrono::seconds>(*seconds).count();
    timespec wait{static_cast<time_t>(whole), static_cast<long>((seconds->count() - whole) * 1e9)};
    const pid_t pid = fork();
    if (pid < 0) {
      return errno_status("fork the process that continues this one");
    }
    if (pid == 0) {
      // Call only what is allowed between fork and exec in a program with threads. Keep no descriptor of ours open: a
      // worker's socket would hide that its agent ended.
      syscall(SYS_close_range, 0U, ~0U, 0U);
      setpgid(0, 0);
      while (nanosleep(&wait, &wait) != 0) {
      }
      if (getppid() == self) {
        kill(self, SIGCONT);
      }
      _exit(0);
    }
    setpgid(pid, pid);
    waker = pid;
  }
  if (kill(self, SIGSTOP) != 0) {
    return errno_status("stop this process");
  }
  return waker;
}

StatusOr<size_t> FullDisk::fill(const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  if (full()) {
    return absl::FailedPreconditionError("the disk is full already");
  }
  const Fd nowhere(open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!nowhere.valid()) {
    return errno_status("open /dev/full");
  }
  std::error_code error;
  std::vector<std::string> roots;
  for (const std::string& folder : folders) {
    if (const fs::path real = fs::canonical(folder, error); !folder.empty() && !error) {
      roots.push_back(real.string() + "/");
    }
  }
  std::vector<int> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const std::string number = entry.path().filename().string();
    int fd = -1;
    std::from_chars(number.data(), number.data() + number.size(), fd);
    const std::string target = fs::read_symlink(entry.path(), error).string();
    const int mode = fd < 0 ? -1 : fcntl(fd, F_GETFL);
    if (mode >= 0 && (mode & O_ACCMODE) != O_RDONLY &&
        std::any_of(roots.begin(), roots.end(), [&](const std::string& root) { return target.starts_with(root); })) {
      found.push_back(fd);
    }
  }
  for (const int fd : found) {
    Fd kept(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (kept.valid() && dup3(nowhere.get(), fd, O_CLOEXEC) >= 0) {
      kept_.emplace(fd, std::move(kept));
    }
  }
  if (kept_.empty()) {
    return absl::FailedPreconditionError("no file is open for writing; does the job have --journal or --log-dir?");
  }
  return kept_.size();
}

void FullDisk::clear() {
  for (const auto& [fd, kept] : kept_) {
    // Leave it alone if it was closed meanwhile, or is another file now.
    std::error_code error;
    const auto now = std::filesystem::read_symlink(absl::StrFormat("/proc/self/fd/%d", fd), error);
    if (!error && now == "/dev/full") {
      dup3(kept.get(), fd, O_CLOEXEC);
    }
  }
  kept_.clear();
}

}  // namespace keepstep::agent
