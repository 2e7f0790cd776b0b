#include "agent/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "absl/strings/str_format.h"

namespace keepstep::agent {

std::string why_not_private(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::StrFormat("'%s' cannot be made: %s", path, std::generic_category().message(errno));
  }
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) {
    return absl::StrFormat("'%s' cannot be looked at: %s", path, std::generic_category().message(errno));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::StrFormat("'%s' is no folder", path);
  }
  if (found.st_uid != geteuid()) {
    return absl::StrFormat("'%s' belongs to another user (uid %d)", path, found.st_uid);
  }
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::StrFormat("others can write to '%s'; chmod go-w it", path);
  }
  return "";
}

std::string private_folder(const std::vector<std::string>& candidates, std::string* warning) {
  for (const std::string& candidate : candidates) {
    const std::string why = why_not_private(candidate);
    if (why.empty()) {
      return candidate;
    }
    *warning += (warning->empty() ? "" : "; ") + why;
  }
  std::string fresh = candidates.front() + "-XXXXXX";
  if (mkdtemp(fresh.data()) == nullptr) {
    *warning += absl::StrFormat("; '%s' cannot be made: %s", fresh, std::generic_category().message(errno));
    return "";
  }
  return fresh;
}

}  // namespace keepstep::agent
