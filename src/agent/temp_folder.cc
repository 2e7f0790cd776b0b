#include "agent/temp_folder.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace keepstep::agent {

StatusOr<TempFolder> TempFolder::create() {
  std::error_code failed;
  std::string name = (std::filesystem::temp_directory_path(failed) / "keepstep-XXXXXX").string();
  if (failed || mkdtemp(name.data()) == nullptr) {
    return errno_status(absl::StrFormat("make a folder for temporary files, %s", name));
  }
  TempFolder folder;
  folder.path_ = name;
  return folder;
}

TempFolder::TempFolder(TempFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

TempFolder& TempFolder::operator=(TempFolder&& other) noexcept {
  std::swap(path_, other.path_);
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
}

}  // namespace keepstep::agent
