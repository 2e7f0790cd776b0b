// `keepstep node`: the agent of a node for ranks started by torchrun, srun or a test. The ranks start it themselves.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

int node_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
