// `keepstep run`: checks the options, then starts agent, zygote and workers and waits for the job's end.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// `args` is what stands behind `keepstep run`. Returns the exit code: 0, 2 for wrong options, else the job's.
int run_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
