// For tests: keeps the names of running processes in a folder that belongs to the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace keepstep {

class OwnRuntimeFolder {
 public:
  OwnRuntimeFolder() {
    KEEPSTEP_CHECK(mkdtemp(path_.data()) != nullptr, "a folder for a test");
    if (const char* before = std::getenv("XDG_RUNTIME_DIR"); before != nullptr) {
      before_ = before;
    }
    setenv("XDG_RUNTIME_DIR", path_.c_str(), 1);
  }
  ~OwnRuntimeFolder() {
    before_.empty() ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    std::filesystem::remove_all(path_);
  }
  OwnRuntimeFolder(const OwnRuntimeFolder&) = delete;
  OwnRuntimeFolder& operator=(const OwnRuntimeFolder&) = delete;

  const std::string& path() const { return path_; }  // the value of XDG_RUNTIME_DIR
  std::filesystem::path names() const { return std::filesystem::path(path_) / "keepstep"; }
  bool empty() const { return !std::filesystem::exists(names()) || std::filesystem::is_empty(names()); }

 private:
  std::string path_ = ::testing::TempDir() + "runtime-XXXXXX";
  std::string before_;
};

}  // namespace keepstep
