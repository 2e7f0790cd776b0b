#include "cli/commands/token_handover.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "agent/control/endpoint.h"
#include "base/fd.h"
#include "base/private_folder.h"

namespace keepstep::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{100};  // a network folder does not announce new files
constexpr size_t kMaxBytes = 4097;

// NOT_FOUND: it does not exist yet.
StatusOr<JobToken> read_token(const std::string& path) {
  // A network file system may cache a lookup for a while; listing the folder refreshes it.
  if (DIR* folder = opendir(fs::path(path).parent_path().c_str()); folder != nullptr) {
    closedir(folder);
  }
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) {
    return errno == ENOENT ? absl::NotFoundError("no such file") : errno_status("open " + path);
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s should hold the job token, but is not a file of this user alone (mode 0600)", path));
  }
  std::string text(kMaxBytes, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) {
    return errno_status("read " + path);
  }
  text.resize(static_cast<size_t>(got));
  return JobToken::parse(text);
}

}  // namespace

LeftToken& LeftToken::operator=(LeftToken&& other) noexcept {
  remove();
  path_ = std::exchange(other.path_, "");
  return *this;
}

void LeftToken::remove() {
  if (!path_.empty()) {
    unlink(path_.c_str());
    path_.clear();
  }
}

StatusOr<LeftToken> leave_token(const std::string& path, const JobToken& token) {
  const std::string folder = fs::path(path).parent_path();
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (const Status status = make_private(folder, Others::kMayLook).status(); !status.ok()) {
    return Status(status.code(), absl::StrFormat("the job token cannot be left in %s: %s (--token-dir names another)",
                                                 folder, status.message()));
  }
  const std::string half = absl::StrFormat("%s.%s", path, to_hex(random_nonce()));
  const Fd file(open(half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) {
    return errno_status("make " + half);
  }
  const std::string& text = token.secret();
  const bool whole = write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                     fsync(file.get()) == 0 && rename(half.c_str(), path.c_str()) == 0;
  if (!whole) {
    Status failed = errno_status("write " + path);
    unlink(half.c_str());
    return failed;
  }
  return LeftToken(path);
}

StatusOr<JobToken> await_token(const std::string& path, std::chrono::milliseconds timeout, const sigset_t& signals,
                               int& got) {
  const auto until = Clock::now() + timeout;
  while (true) {
    StatusOr<JobToken> token = read_token(path);
    if (!absl::IsNotFound(token.status())) {
      return token;
    }
    if (Clock::now() >= until) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "node 0 left no job token at %s within %g s (--join-timeout): did it start, and is that folder the same on "
          "all nodes? If no folder is (--token-dir), start with: KEEPSTEP_TOKEN=$(openssl rand -hex 32) srun keepstep "
          "run ...",
          path, static_cast<double>(timeout.count()) / 1000));
    }
    if (got = agent::signal_within(signals, kPause); got != 0) {
      return absl::CancelledError("a signal came");
    }
  }
}

}  // namespace keepstep::cli
