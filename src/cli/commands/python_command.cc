#include "cli/commands/python_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/workers/start_process.h"
#include "cli/commands/print.h"
#include "cli/options/find_python.h"

namespace keepstep::cli {
namespace {

// The interpreter's own output goes to standard error.
bool can_import(const std::string& python, const std::string& module) {
  const StatusOr<pid_t> pid = agent::start_process({python, "-c", "import " + module}, {{1, 1}, {2, 2}}, {});
  int status = -1;
  return pid.ok() && waitpid(*pid, &status, 0) == *pid && status == 0;
}

}  // namespace

int exec_python(const std::string& module, const std::vector<std::string>& args) {
  const auto python = find_python(python_search());
  if (!python.ok()) {
    print_line(stderr, absl::StrCat("keepstep: ", python.status().message()));
    return 2;
  }
  std::vector<std::string> words = {*python, "-m", module};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  execv(python->c_str(), argv.data());
  print_line(stderr, absl::StrCat("keepstep: cannot start ", *python, ": ", std::strerror(errno)));
  return 126;
}

int doctor_main(const std::vector<std::string>& args) {
  const PythonSearch search = python_search();
  const auto python = find_python(search);
  if (!python.ok()) {
    print_line(stderr, absl::StrCat("keepstep doctor: error: ", python.status().message()));
    return 1;
  }
  if (!can_import(*python, "keepstep.doctor.__main__")) {
    print_line(
        stderr,
        absl::StrCat("keepstep doctor: error: ", *python,
                     " is the interpreter that jobs would use, and it cannot import the package keepstep, or what that "
                     "needs; install keepstep there, or set KEEPSTEP_PYTHON to an interpreter that has it"));
    return 1;
  }
  if (const std::string command = find_program(search.called_as, search.path); !command.empty()) {
    setenv("KEEPSTEP_COMMAND", command.c_str(), 0);
  }
  return exec_python("keepstep.doctor", args);
}

}  // namespace keepstep::cli
