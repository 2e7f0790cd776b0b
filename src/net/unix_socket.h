// Unix stream sockets with a path, for processes of one user on one machine.
//
// They lie in a folder that only this user can enter, and the kernel says which user is at the other end (SO_PEERCRED).
// The folder is opened first and the name is taken relative to it, so nobody can swap one folder for another meanwhile,
// and a long path does no harm. Needs /proc.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep::net {

// Listens at `path`, without blocking. PERMISSION_DENIED: the folder is not this user's, or others can enter it (its
// mode must be 0700). ALREADY_EXISTS: something is there already, perhaps of a process that was killed.
StatusOr<Fd> listen_unix(const std::string& path);

// Connects without blocking. PERMISSION_DENIED: as above, or another user listens. UNAVAILABLE: no listener, or it has
// too many connections waiting; try again.
StatusOr<Fd> connect_unix(const std::string& path);

// PERMISSION_DENIED if the process at the other end of `fd` is not of this user; `peer` is how the error names it.
Status check_same_user(int fd, const std::string& peer);

}  // namespace keepstep::net
