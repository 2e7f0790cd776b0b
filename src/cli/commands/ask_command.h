// The command `keepstep ask`: passes other programs' requests to a running job, and returns its answers. Not in the
// overview: `keepstep ckpt`, which is written in Python, reaches jobs through it.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// `args`: the arguments after the command's name. Returns the exit code.
int ask_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
