// `keepstep version`: the version of the command, and what it and the package's extensions were built with.
#pragma once

#include <string>
#include <vector>

namespace keepstep::cli {

// Exit code: 0, or 2 for unknown arguments.
int version_main(const std::vector<std::string>& args);

}  // namespace keepstep::cli
