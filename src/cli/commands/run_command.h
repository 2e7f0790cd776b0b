// `keepstep run`: checks the options, starts agent, zygote and workers, and waits for the end of the job.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// `args`: the arguments after `keepstep run`. Returns the exit code: 0, 2 for invalid options, else the job's.
int run_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
