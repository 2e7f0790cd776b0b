#include "checkpoint/disk_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/token.h"
#include "checkpoint/keys.h"

namespace keepstep::checkpoint {
namespace {

constexpr int kTries = 100;  // at names that others take or remove meanwhile
constexpr int64_t kMaxLockWaitNs = 60'000'000'000;
// A model is private to its owner; to share it, change this, or the folder's default access list.
constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;

std::string folder_of(std::string path) { return dirname(path.data()); }

// Free bytes in the file system of `path`, or of its nearest existing parent folder.
std::string room_at(std::string path) {
  struct statvfs room{};
  while (statvfs(path.c_str(), &room) != 0) {
    if (path == "/" || path == "." || path.empty()) {
      return "unknown room";
    }
    path = folder_of(path);
  }
  return absl::StrFormat("%d MiB free for this user", (uint64_t{room.f_bavail} * room.f_frsize) >> 20);
}

const std::string& boot_id() {
  static const std::string id = [] {
    std::string text = "unknown";
    if (FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re"); file != nullptr) {
      char line[64] = {};
      if (std::fgets(line, sizeof(line), file) != nullptr) {
        text = std::string(line).substr(0, 8);
      }
      (void)std::fclose(file);
    }
    return text;
  }();
  return id;
}

std::string random_name() { return absl::StrFormat("%s-%d-%016x", boot_id(), getpid(), random_number()); }

enum class Lock { kHeld, kTaken, kImpossible };

Lock try_lock(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Lock::kTaken;
    }
    if (errno != EINTR) {
      return Lock::kImpossible;
    }
  }
  return Lock::kHeld;
}

bool same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Whether `name` still refers to the partial file open at `fd`.
bool has_name(int fd, const std::string& name) {
  struct stat opened{};
  struct stat named{};
  return fstat(fd, &opened) == 0 && lstat(name.c_str(), &named) == 0 && same_file(opened, named);
}

int rename_or_link(const std::string& from, const std::string& to, PartialFile::Existing existing) {
  if (existing == PartialFile::Existing::kReplace) {
    return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }
  if (link(from.c_str(), to.c_str()) == 0) {
    return 0;
  }
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) {
    return errno;
  }
  // A file system without hard links.
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
}

}  // namespace

Status disk_error(std::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrFormat("%s '%s': %s", what, path, std::generic_category().message(error));
  switch (error) {
    case ENOSPC:
      return absl::ResourceExhaustedError(
          absl::StrFormat("%s (%s). Free some, or keep fewer checkpoints", text, room_at(path)));
    case EDQUOT:
      return absl::ResourceExhaustedError(absl::StrFormat("%s. Raise the quota, or keep fewer checkpoints", text));
    case EFBIG:
      return absl::ResourceExhaustedError(absl::StrFormat("%s (ulimit -f, or the file system's limit)", text));
    case EROFS:
      return absl::FailedPreconditionError(
          absl::StrFormat("%s. Mount it for writing, or write to another destination", text));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(absl::StrFormat("%s (as user %d)", text, geteuid()));
    case EIO:
      return absl::DataLossError(absl::StrFormat("%s: the device or the server behind it fails; see dmesg", text));
    case ESTALE:
      return absl::UnavailableError(absl::StrFormat("%s: the network file system lost it", text));
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::FailedPreconditionError(text);
    case ENOENT:
      return absl::NotFoundError(text);
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(absl::StrFormat("%s. Raise the limit of open files (ulimit -n)", text));
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), text);
  }
}

Status make_folders(const std::string& path) {
  if (mkdir(path.c_str(), kFolderMode) == 0) {
    return sync_folder_of(path);
  }
  if (errno == EEXIST) {
    struct stat found{};
    if (stat(path.c_str(), &found) != 0) {
      return disk_error("look at", path, errno);
    }
    return S_ISDIR(found.st_mode) ? absl::OkStatus() : disk_error("make the folder", path, ENOTDIR);
  }
  if (errno != ENOENT) {
    return disk_error("make the folder", path, errno);
  }
  const std::string above = folder_of(path);
  if (above == path) {
    return disk_error("make the folder", path, ENOENT);
  }
  KEEPSTEP_RETURN_IF_ERROR(make_folders(above));
  if (mkdir(path.c_str(), kFolderMode) != 0 &&
      errno != EEXIST) {  // ENOENT: somebody removed it again; the caller retries
    return disk_error("make the folder", path, errno);
  }
  return sync_folder_of(path);
}

Status sync_folder_of(const std::string& path) {
  const std::string folder = folder_of(path);
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return disk_error("open the folder", folder, errno);
  }
  // EINVAL: a file system without fsync of folders (some of FUSE) has nothing to make durable.
  return fsync(fd.get()) == 0 || errno == EINVAL ? absl::OkStatus()
                                                 : disk_error("make durable the folder", folder, errno);
}

Status write_whole(int fd, std::span<const std::byte> bytes, const std::string& path) {
  constexpr size_t kMaxAtOnce = 64 << 20;
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kMaxAtOnce));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return disk_error("write", path, written < 0 ? errno : EIO);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

StatusOr<PartialFile> PartialFile::create(const std::string& root, const std::string& path) {
  const std::string folder = absl::StrFormat("%s/%s", root, kPartialFolder);
  for (int i = 0; i < kTries; ++i) {
    std::string partial = absl::StrFormat("%s/%s", folder, random_name());
    Fd fd(::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode));
    if (!fd.valid() && errno == ENOENT) {
      KEEPSTEP_RETURN_IF_ERROR(make_folders(folder));
      continue;
    }
    if (!fd.valid() && errno == EEXIST) {
      continue;
    }
    if (!fd.valid()) {
      return disk_error("create a file for", path, errno);
    }
    // Between open and lock somebody may have taken it for a leftover. Where files cannot be locked, only age decides.
    if (try_lock(fd.get()) != Lock::kTaken && has_name(fd.get(), partial)) {
      return PartialFile(std::move(fd), std::move(partial), path);
    }
  }
  return absl::AbortedError(absl::StrFormat("the files being written in '%s' are removed again and again", folder));
}

PartialFile::~PartialFile() {
  if (fd_.valid()) {
    (void)unlink(partial_.c_str());
  }
}

Status PartialFile::make_durable() {
  return fsync(fd_.get()) == 0 ? absl::OkStatus() : disk_error("make durable what was written for", path_, errno);
}

Status PartialFile::give_name(Existing existing) {
  int error = ENOENT;
  for (int i = 0; i < kTries && error == ENOENT; ++i) {  // a folder that became empty may vanish again
    error = rename_or_link(partial_, path_, existing);
    if (error == ENOENT) {
      if (!has_name(fd_.get(), partial_)) {
        return absl::AbortedError(
            absl::StrFormat("'%s', what was written for '%s', has been removed by somebody else", partial_, path_));
      }
      const Status made = make_folders(folder_of(path_));
      if (!made.ok() && !absl::IsNotFound(made)) {
        return made;
      }
    }
  }
  if (error == EEXIST && existing == Existing::kKeep) {
    return absl::AlreadyExistsError(path_);
  }
  if (error != 0) {
    return disk_error("give its name to", path_, error);
  }
  if (existing == Existing::kKeep) {
    (void)unlink(partial_.c_str());
  }
  fd_.reset();
  return sync_folder_of(path_);
}

StatusOr<uint64_t> remove_partial_files(const std::string& root, std::chrono::seconds older_than) {
  const std::string folder = absl::StrFormat("%s/%s", root, kPartialFolder);
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(opendir(folder.c_str()), closedir);
  if (opened == nullptr) {
    return errno == ENOENT ? StatusOr<uint64_t>(0) : disk_error("list", folder, errno);
  }
  uint64_t removed = 0;
  while (const dirent* entry = readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == ".." || name == "lock") {
      continue;
    }
    const std::string path = absl::StrFormat("%s/%s", folder, name);
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat found{};
    if (!fd.valid() || fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
      continue;
    }
    const Lock lock = try_lock(fd.get());
    const bool ours = name.starts_with(boot_id() + "-") && lock != Lock::kImpossible;
    const bool old =
        wall_seconds() - static_cast<double>(found.st_mtim.tv_sec) > static_cast<double>(older_than.count());
    if (lock != Lock::kTaken && (ours || old) && has_name(fd.get(), path)) {
      if (unlink(path.c_str()) != 0 && errno != ENOENT) {
        return disk_error("remove", path, errno);
      }
      ++removed;
    }
  }
  return removed;
}

StatusOr<Fd> lock_for_puts(const std::string& root, const std::atomic<bool>& interrupted_flag) {
  const std::string folder = absl::StrFormat("%s/%s", root, kPartialFolder);
  const std::string path = folder + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode));
  if (!fd.valid() && errno == ENOENT) {
    KEEPSTEP_RETURN_IF_ERROR(make_folders(folder));
    fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode));
  }
  if (!fd.valid()) {
    return disk_error("open", path, errno);
  }
  const int64_t begin = monotonic_ns();
  auto pause = std::chrono::microseconds(100);
  while (true) {
    switch (try_lock(fd.get())) {
      case Lock::kHeld:
        return fd;
      case Lock::kImpossible:
        return absl::UnimplementedError(absl::StrFormat("lock '%s': %s", path, std::generic_category().message(errno)));
      case Lock::kTaken:
        break;
    }
    if (interrupted_flag) {
      return interrupted(absl::StrFormat("file://%s", root));
    }
    if (monotonic_ns() - begin > kMaxLockWaitNs) {
      return absl::UnavailableError(absl::StrFormat(
          "'%s' is locked for longer than a minute; is a process that writes there stopped (lslocks tells which)?",
          path));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
}

}  // namespace keepstep::checkpoint
