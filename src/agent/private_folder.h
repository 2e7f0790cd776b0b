// Folders that nobody else on this machine can have put anything into.
#pragma once

#include <string>
#include <vector>

namespace keepstep::agent {

// Why `path` is no folder that only this user can write to (its owner, a link, its mode), or "". One that is not there
// is made, for this user alone (0700); the folder above it must be there, and sticky where others can write to it.
std::string why_not_private(const std::string& path);

// The first of `candidates` that is private; else a new one beside the first. `warning`: which were passed over, and
// why.
std::string private_folder(const std::vector<std::string>& candidates, std::string* warning);

}  // namespace keepstep::agent
