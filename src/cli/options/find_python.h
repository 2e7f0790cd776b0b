// Which Python interpreter runs training scripts and the commands that are written in Python.
#pragma once

#include <string>

#include "base/status.h"

namespace keepstep::cli {

// What the search looks at, apart from the file system; current_place() fills it.
struct Place {
  std::string keepstep_python;  // $KEEPSTEP_PYTHON; a path or a name in PATH
  std::string python_exec;      // $PYTHON_EXEC, which torchrun honours
  std::string path;             // $PATH
  std::string
      called_as;  // the first word of the command line: its folder may be that of a symlink in a virtual environment
  std::string executable;  // /proc/self/exe
};
Place current_place();

// The first of: $KEEPSTEP_PYTHON, $PYTHON_EXEC, `python` of a virtual environment that holds the command or one of the
// symlinks that lead to it, `python` of .venv in the checkout whose build folder holds it, `python3.N` (beside the
// command or in PATH) if lib/python3.N beside the command's folder holds the package, as after `pip install --user`,
// `python` beside any of these names of the command, `python3` in PATH. Absolute; symlinks of interpreters are kept,
// because a virtual environment is one. NOT_FOUND says where it looked; a variable that names no program is an error,
// never skipped.
StatusOr<std::string> find_python(const Place& place);

// The absolute path of `program` in `path`, or of `program` itself if it has a slash; empty if it cannot be executed.
std::string find_program(const std::string& program, const std::string& path);

}  // namespace keepstep::cli
