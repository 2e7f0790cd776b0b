// Finds the Python interpreter that runs training scripts and the commands written in Python.
#pragma once

#include <string>

#include "base/status.h"

namespace keepstep::cli {

// Inputs of the search, apart from the file system; python_search() fills them in.
struct PythonSearch {
  std::string keepstep_python;  // $KEEPSTEP_PYTHON: a path, or a name in PATH
  std::string python_exec;      // $PYTHON_EXEC, which torchrun honors
  std::string path;             // $PATH
  std::string
      called_as;  // the first word of the command line: its folder may be that of a symlink in a virtual environment
  std::string executable;  // /proc/self/exe
};
PythonSearch python_search();

// Returns the first of: $KEEPSTEP_PYTHON, $PYTHON_EXEC, `python` of a virtual environment that contains the command or
// one of the symlinks that lead to it, `python` of .venv in the checkout whose build folder contains the command,
// `python3.N` (next to the command or in PATH) if lib/python3.N next to the command's folder contains the package, as
// after `pip install --user`, `python` next to any of these names of the command, `python3` in PATH. Absolute; symlinks
// of interpreters are kept, because a virtual environment is one. NOT_FOUND lists the places searched; a variable that
// names no program is an error and is never skipped.
StatusOr<std::string> find_python(const PythonSearch& search);

// The absolute path of `program` in `path`, or of `program` itself if it contains a slash; empty if it is not
// executable.
std::string find_program(const std::string& program, const std::string& path);

}  // namespace keepstep::cli
