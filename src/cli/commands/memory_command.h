// `keepstep memory`: checkpoints in memory that outlive jobs. Writers start the server themselves.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

int memory_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
