// The command `keepstep machine`: what the engine needs from this machine, and whether it has it, as one JSON object.
// Not in the overview: `keepstep doctor`, which is written in Python, uses it (python/keepstep/doctor/engine.py).
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// `args`: the arguments after the command's name. Returns the exit code: 0 whatever is found; 2 for invalid options.
int machine_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
