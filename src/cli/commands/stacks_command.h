// `keepstep stacks`: shows what every rank of a running job is doing right now.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Returns the exit code: 0 done; 1 no such job, or it refused; 2 invalid options.
int stacks_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
