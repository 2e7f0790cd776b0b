#include "base/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

namespace keepstep {

StatusOr<Fd> open_private(const std::string& path, Others others) {
  Fd folder(open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid() && errno == ENOTDIR) {
    return absl::PermissionDeniedError(absl::StrFormat("'%s' is no folder", path));
  }
  struct stat found{};
  if (!folder.valid() || fstat(folder.get(), &found) != 0) {
    return errno_status(absl::StrFormat("look at the folder '%s'", path));
  }
  if (found.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrFormat("'%s' belongs to another user (uid %d)", path, found.st_uid));
  }
  if (others == Others::kMayLook && (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat("others can write to '%s'; chmod go-w it", path));
  }
  if (others == Others::kMayNot && (found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("'%s' is open to others (mode %04o); chmod 700 it", path, found.st_mode & 07777));
  }
  return folder;
}

StatusOr<Fd> make_private(const std::string& path, Others others) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    return absl::ErrnoToStatus(
        error, absl::StrFormat("'%s' cannot be made: %s", path, std::generic_category().message(error)));
  }
  return open_private(path, others);
}

std::string private_folder(const std::vector<std::string>& candidates, std::string* warning) {
  for (const std::string& candidate : candidates) {
    const Status status = make_private(candidate, Others::kMayLook).status();
    if (status.ok()) {
      return candidate;
    }
    *warning += (warning->empty() ? "" : "; ") + std::string(status.message());
  }
  std::string fresh = candidates.front() + "-XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) {
    *warning += absl::StrFormat("; '%s' cannot be made: %s", fresh, std::generic_category().message(errno));
    return "";
  }
  return fresh;
}

}  // namespace keepstep
