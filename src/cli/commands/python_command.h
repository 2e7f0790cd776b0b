// Commands that are Python modules: `keepstep NAME ...` is `python -m keepstep.NAME ...`, in the interpreter that
// `keepstep run` uses (cli/options/find_python.h).
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Becomes that process; returns the exit code only if that fails, after printing why.
int exec_python(const std::string& module, const std::vector<std::string>& args);

// `keepstep doctor`. If the interpreter is missing or cannot import the package, that is a finding, not a failure:
// prints what to do and returns 1. The doctor examines the command that called it.
int doctor_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
