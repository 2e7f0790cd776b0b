// The command `keepstep ask`: hands requests of other programs to a running job, and its answers back. Not in the
// overview: `keepstep ckpt`, which is Python, reaches jobs through it.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// `args`: those after the command's name. Returns the exit code.
int ask_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
