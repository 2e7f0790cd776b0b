#include "cli/find_python.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_split.h"

namespace keepstep::cli {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string executable_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || access(path.c_str(), X_OK) != 0) {
    return "";
  }
  return fs::absolute(path, error).lexically_normal().string();
}

}  // namespace

Place current_place() {
  std::error_code error;
  std::string called_as;
  std::ifstream command_line("/proc/self/cmdline");
  std::getline(command_line, called_as, '\0');
  return {.keepstep_python = variable("KEEPSTEP_PYTHON"),
          .python_exec = variable("PYTHON_EXEC"),
          .path = variable("PATH"),
          .called_as = called_as,
          .executable = fs::read_symlink("/proc/self/exe", error).string()};
}

std::string find_program(const std::string& program, const std::string& path) {
  if (program.empty()) {
    return "";
  }
  if (program.find('/') != std::string::npos) {
    return executable_file(program);
  }
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(path, ':'))) {
    if (std::string found = executable_file(fs::path(folder.empty() ? "." : folder) / program); !found.empty()) {
      return found;
    }
  }
  return "";
}

StatusOr<std::string> find_python(const Place& place) {
  for (const auto& [name, value] :
       {std::pair{"KEEPSTEP_PYTHON", place.keepstep_python}, std::pair{"PYTHON_EXEC", place.python_exec}}) {
    if (value.empty()) {
      continue;
    }
    if (std::string found = find_program(value, place.path); !found.empty()) {
      return found;
    }
    return absl::NotFoundError(absl::StrFormat(
        "the environment variable %s is '%s', which is no program; set it to a Python interpreter or unset it", name,
        value));
  }
  std::string looked;
  for (const std::string& self : {find_program(place.called_as, place.path), place.executable}) {
    if (self.empty()) {
      continue;
    }
    const fs::path beside = fs::path(self).parent_path() / "python";
    if (std::string found = executable_file(beside); !found.empty()) {
      return found;
    }
    looked += beside.string() + ", ";
  }
  if (std::string found = find_program("python3", place.path); !found.empty()) {
    return found;
  }
  return absl::NotFoundError(absl::StrFormat(
      "no Python interpreter found (looked for %sand python3 in PATH); set KEEPSTEP_PYTHON to one", looked));
}

}  // namespace keepstep::cli
