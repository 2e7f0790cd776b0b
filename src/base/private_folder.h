// Folders to which no other user of this machine can have added anything.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

enum class Others {
  kMayLook,  // other users may not write
  kMayNot,   // other users have no access: mode 0700
};

// Opens the folder at `path` (O_PATH). It must not be a symbolic link, must belong to this user, and must be closed to
// others as `others` requires. Operations relative to the descriptor stay in that folder, whatever happens to the path.
// NOT_FOUND: it does not exist. PERMISSION_DENIED: it does not meet these conditions; the message says why and what to
// do.
StatusOr<Fd> open_private(const std::string& path, Others others);

// The same, but creates a missing folder (mode 0700). Its parent must exist, and must be sticky if others can write to
// it.
StatusOr<Fd> make_private(const std::string& path, Others others);

// The first of `candidates` that no other user can write to, created if missing. If there is none: a new folder next to
// the first candidate, or "" if that cannot be created either. `warning`: which candidates were skipped, and why.
std::string private_folder(const std::vector<std::string>& candidates, std::string* warning);

}  // namespace keepstep
