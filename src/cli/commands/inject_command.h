// `keepstep inject`: injects a fault into a running job.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Returns the exit code: 0 done; 1 no such job, or it refused; 2 invalid options.
int inject_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
