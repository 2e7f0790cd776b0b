// Folders that nobody else on this machine can have put anything into.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

enum class Others {
  kMayLook,  // nobody else may write
  kMayNot,   // nobody else may do anything: mode 0700
};

// The folder at `path`, open (O_PATH): no link, this user's, and closed to others as far as `others` says. What is done
// relative to it stays in it, whatever happens to the path. NOT_FOUND: it is not there. PERMISSION_DENIED: it is no
// such folder; the message says why, and what to do.
StatusOr<Fd> open_private(const std::string& path, Others others);

// The same; one that is not there is made (0700). The folder above must be there, and sticky where others can write to
// it.
StatusOr<Fd> make_private(const std::string& path, Others others);

// The first of `candidates` that nobody else can write to, made if it is missing; else a new one beside the first.
// `warning`: which were passed over, and why.
std::string private_folder(const std::vector<std::string>& candidates, std::string* warning);

}  // namespace keepstep
