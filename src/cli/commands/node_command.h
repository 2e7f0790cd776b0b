// `keepstep node`: the agent of a node for ranks that torchrun, srun or a test started. They start it by themselves.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

int node_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
