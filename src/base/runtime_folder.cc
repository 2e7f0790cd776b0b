#include "base/runtime_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/checksum.h"
#include "base/private_folder.h"

namespace keepstep {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 100;
constexpr std::chrono::milliseconds kPause{1};
constexpr int kTries = 5000;  // far longer than any holder needs: examining the folder takes microseconds

std::string boot_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

// Read once: later there may be no free descriptor to read it with.
const std::string& lock_suffix() {
  static const std::string suffix = [] {
    const std::string boot = boot_id();
    return absl::StrFormat("+lock-%016x", checksum(boot.data(), boot.size()));
  }();
  return suffix;
}

struct Candidate {
  std::string above;  // must be private too; empty: shared by all users, and sticky
  std::string path;
};

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  if (const char* given = std::getenv("XDG_RUNTIME_DIR"); given != nullptr && *given == '/') {
    all.push_back({given, (fs::path(given) / "keepstep").string()});
  }
  const std::string usual = absl::StrFormat("/run/user/%d", geteuid());
  if (all.empty() || fs::path(all.front().above) != usual) {
    all.push_back({usual, usual + "/keepstep"});
  }
  all.push_back({"", absl::StrFormat("/tmp/keepstep-%d", geteuid())});
  return all;
}

// Returns an O_PATH descriptor, which cannot itself be read or locked.
StatusOr<Fd> open_candidate(const Candidate& candidate, bool make) {
  if (!candidate.above.empty()) {
    KEEPSTEP_RETURN_IF_ERROR(open_private(candidate.above, Others::kMayLook).status());
  }
  return make ? make_private(candidate.path, Others::kMayNot) : open_private(candidate.path, Others::kMayNot);
}

// Other processes wait for the lock until the returned descriptor is closed.
StatusOr<Fd> lock_folder(const Fd& folder, const std::string& path) {
  Fd lock(openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid()) {
    return errno_status("open the folder " + path);
  }
  for (int i = 0; flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || i == kTries) {
      return errno_status("lock the folder " + path + " (is a process of this user stopped?)");
    }
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

std::vector<std::string> files_in(const Fd& locked) {
  std::vector<std::string> names;
  const int again = openat(locked.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(again < 0 ? nullptr : fdopendir(again), &closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool belongs_to(std::string_view file, std::string_view name) {
  return file == name || (file.starts_with(name) && file.substr(name.size()).starts_with('+'));
}

// Returns the held names in a locked folder; removes the files of names whose process has ended.
std::vector<std::string> sweep(const Fd& locked) {
  const std::vector<std::string> files = files_in(locked);
  const std::string& suffix = lock_suffix();
  std::vector<std::string> held;
  for (const std::string& file : files) {
    if (!file.ends_with(suffix)) {
      continue;
    }
    const std::string name = file.substr(0, file.size() - suffix.size());
    const Fd lock(openat(locked.get(), file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      held.push_back(name);
      continue;
    }
    for (const std::string& each : files) {
      if (belongs_to(each, name)) {
        unlinkat(locked.get(), each.c_str(), 0);
      }
    }
  }
  return held;
}

}  // namespace

StatusOr<HeldName> HeldName::take(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.find_first_of("/+") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is not a valid name for the file of a running process", name));
  }
  HeldName made;
  std::vector<std::string> because;
  for (const Candidate& candidate : candidates()) {
    StatusOr<Fd> folder = open_candidate(candidate, true);
    if (folder.ok()) {
      made.folder_ = *std::move(folder);
      made.path_ = candidate.path + "/" + name;
      break;
    }
    because.emplace_back(folder.status().message());
  }
  if (!made.folder_.valid()) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "there is no folder through which processes of this user could find each other: %s. Set XDG_RUNTIME_DIR, "
        "alike for all of them, to a folder on this machine that only this user can enter (chmod 700)",
        absl::StrJoin(because, "; ")));
  }
  for (const std::string& path : names_held(name)) {
    if (fs::path(path).filename() == name) {  // its process may have picked another folder
      return absl::AlreadyExistsError(absl::StrFormat("another process holds %s", path));
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Fd locked, lock_folder(made.folder_, fs::path(made.path_).parent_path()));
  const std::vector<std::string> held = sweep(locked);
  if (std::ranges::find(held, name) != held.end()) {
    return absl::AlreadyExistsError(absl::StrFormat("another process holds %s", made.path_));
  }
  unlinkat(locked.get(), name.c_str(), 0);  // a socket whose lock file was removed
  Fd lock(openat(locked.get(), (name + lock_suffix()).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno_status(absl::StrFormat("lock %s%s", made.path_, lock_suffix()));
  }
  made.lock_ = std::move(lock);
  return made;
}

HeldName& HeldName::operator=(HeldName&& other) noexcept {
  if (this != &other) {
    let_go();
    path_ = std::move(other.path_);
    folder_ = std::move(other.folder_);
    lock_ = std::move(other.lock_);
  }
  return *this;
}

HeldName::~HeldName() { let_go(); }

void HeldName::let_go() {
  if (!lock_.valid()) {
    return;
  }
  const StatusOr<Fd> locked = found() ? lock_folder(folder_, path_) : StatusOr<Fd>(absl::NotFoundError("removed"));
  if (locked.ok()) {
    const std::string name = fs::path(path_).filename();
    for (const std::string& file : files_in(*locked)) {
      if (belongs_to(file, name)) {
        unlinkat(locked->get(), file.c_str(), 0);
      }
    }
  }
  lock_.reset();  // before the folder's lock: the next process finds no files, or only files that are not held
}

bool HeldName::found() const {
  struct stat mine{};
  struct stat there{};
  return lock_.valid() && fstat(lock_.get(), &mine) == 0 && stat((path_ + lock_suffix()).c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

std::vector<std::string> runtime_folders() {
  std::vector<std::string> found;
  for (const Candidate& candidate : candidates()) {
    if (open_candidate(candidate, false).ok()) {
      found.push_back(candidate.path);
    }
  }
  return found;
}

std::vector<std::string> names_held(std::string_view prefix) {
  std::vector<std::string> found;
  for (const std::string& path : runtime_folders()) {
    const StatusOr<Fd> folder = open_private(path, Others::kMayNot);
    const StatusOr<Fd> locked = folder.ok() ? lock_folder(*folder, path) : StatusOr<Fd>(folder.status());
    if (locked.ok()) {
      for (const std::string& name : sweep(*locked)) {
        if (name.starts_with(prefix)) {
          found.push_back(absl::StrFormat("%s/%s", path, name));
        }
      }
    }
  }
  return found;
}

std::string this_machine() {
  struct stat found{};
  const std::string both =
      absl::StrFormat("%s %d", boot_id(), stat("/proc/self/ns/net", &found) == 0 ? found.st_ino : 0);
  return absl::StrFormat("%016x", checksum(both.data(), both.size()));
}

}  // namespace keepstep
