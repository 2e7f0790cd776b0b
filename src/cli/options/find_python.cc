#include "cli/options/find_python.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
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

// The command as it was called, then the target of each symlink on the way, then the real file.
std::vector<fs::path> names_of_command(const PythonSearch& search) {
  constexpr int kMaxLinks = 40;  // like the kernel's limit: ends a cycle
  std::vector<fs::path> names;
  std::error_code error;
  fs::path name = find_program(search.called_as, search.path);
  for (int links = 0; !name.empty() && links < kMaxLinks; ++links) {
    names.push_back(name);
    const fs::path target = fs::read_symlink(name, error);
    name = error ? fs::path() : (name.parent_path() / target).lexically_normal();
  }
  if (!search.executable.empty()) {
    names.emplace_back(search.executable);
  }
  return names;
}

// The names of interpreters (python3.N) that have the package installed below the folder `lib`.
std::set<std::string> interpreters_with_package(const fs::path& lib) {
  std::set<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(lib, error)) {
    const std::string name = entry.path().filename().string();
    const auto holds = [&](const char* packages) { return fs::exists(entry.path() / packages / "keepstep", error); };
    if (name.starts_with("python3.") && (holds("site-packages") || holds("dist-packages"))) {  // Debian: dist-packages
      found.insert(name);
    }
  }
  return found;
}

// Places of an interpreter that belongs to the command: first in a virtual environment that a symlink leads through
// (not next to a link from ~/bin, where some unrelated python may be), then in the checkout's, then next to any name.
std::vector<fs::path> candidates(const PythonSearch& search) {
  const std::vector<fs::path> names = names_of_command(search);
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::path& name : names) {
    if (fs::exists(name.parent_path().parent_path() / "pyvenv.cfg", error)) {
      found.push_back(name.parent_path() / "python");
    }
  }
  if (!search.executable.empty()) {  // CHECKOUT/build/keepstep
    found.push_back(fs::path(search.executable).parent_path().parent_path() / ".venv/bin/python");
  }
  for (const fs::path& name : names) {
    for (const std::string& python : interpreters_with_package(name.parent_path().parent_path() / "lib")) {
      found.push_back(name.parent_path() / python);
      if (const std::string in_path = find_program(python, search.path); !in_path.empty()) {
        found.emplace_back(in_path);
      }
    }
  }
  for (const fs::path& name : names) {
    found.push_back(name.parent_path() / "python");
  }
  return found;
}

}  // namespace

PythonSearch python_search() {
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

StatusOr<std::string> find_python(const PythonSearch& search) {
  for (const auto& [name, value] :
       {std::pair{"KEEPSTEP_PYTHON", search.keepstep_python}, std::pair{"PYTHON_EXEC", search.python_exec}}) {
    if (value.empty()) {
      continue;
    }
    if (std::string found = find_program(value, search.path); !found.empty()) {
      return found;
    }
    return absl::NotFoundError(absl::StrFormat(
        "the environment variable %s is '%s', which is no program; set it to a Python interpreter or unset it", name,
        value));
  }
  std::string looked;
  for (const fs::path& candidate : candidates(search)) {
    if (std::string found = executable_file(candidate); !found.empty()) {
      return found;
    }
    absl::StrAppend(&looked, candidate.string(), ", ");
  }
  if (std::string found = find_program("python3", search.path); !found.empty()) {
    return found;
  }
  return absl::NotFoundError(absl::StrFormat(
      "no Python interpreter found (looked for %sand python3 in PATH); set KEEPSTEP_PYTHON to one", looked));
}

}  // namespace keepstep::cli
