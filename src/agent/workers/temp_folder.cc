#include "agent/workers/temp_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/private_folder.h"
#include "base/runtime_folder.h"

namespace keepstep::agent {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "keepstep-";
constexpr std::string_view kRandom = "XXXXXX";

// The name of the lock file. Locks may not reach other machines that share the folder, so each machine has its own
// name.
std::string lock_name() { return "lock-" + this_machine(); }

void remove_dead(const fs::path& among) {
  std::error_code failed;
  for (auto each = fs::directory_iterator(among, failed); !failed && each != fs::end(each); each.increment(failed)) {
    const std::string name = each->path().filename();
    if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kRandom.size()) {
      continue;
    }
    const StatusOr<Fd> folder = open_private(each->path(), Others::kMayNot);
    const Fd lock(folder.ok() ? openat(folder->get(), lock_name().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1);
    if (lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      std::error_code gone;
      fs::remove_all(each->path(), gone);
    }
  }
}

// Creates the file and locks it before it gets the name that others look for.
Fd locked_in(const fs::path& folder) {
  const std::string early = folder / "early";
  Fd lock(open(early.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0 &&
      rename(early.c_str(), (folder / lock_name()).c_str()) == 0) {
    return lock;
  }
  unlink(early.c_str());  // an unlocked file would stay if this process were killed
  return {};
}

}  // namespace

StatusOr<TempFolder> TempFolder::create() {
  std::error_code failed;
  const fs::path among = fs::temp_directory_path(failed);
  if (!failed) {
    remove_dead(among);
  }
  std::string name = among / (std::string(kPrefix) + std::string(kRandom));
  if (failed || mkdtemp(name.data()) == nullptr) {
    return errno_status(absl::StrFormat("make a folder for temporary files, %s", name));
  }
  TempFolder folder;
  folder.path_ = name;
  folder.lock_ = locked_in(folder.path_);
  return folder;
}

TempFolder::TempFolder(TempFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

TempFolder& TempFolder::operator=(TempFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_, other.lock_);
  return *this;
}

TempFolder::~TempFolder() { remove_all(); }

void TempFolder::remove(brain::WorkerId worker) const {
  std::error_code gone;
  if (!path_.empty()) {
    std::filesystem::remove_all(path_ / std::to_string(worker), gone);
  }
}

void TempFolder::remove_all() {
  std::error_code gone;
  if (!path_.empty()) {
    std::filesystem::remove_all(path_, gone);
  }
  path_.clear();
  lock_.reset();
}

}  // namespace keepstep::agent
