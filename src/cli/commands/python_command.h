// Commands that are Python modules: `keepstep NAME ...` is `python -m keepstep.NAME ...`, in the interpreter that
// `keepstep run` uses (cli/options/find_python.h).
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Becomes that process; returns the exit code only if that fails, after it was said why.
int exec_python(const std::string& module, const std::vector<std::string>& args);

// `keepstep doctor`. An interpreter that is missing, or cannot import the package, is a finding, not an accident: 1,
// after it was said what to do. The doctor examines the command that it was called by.
int doctor_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
