// Unix sockets with a path, for processes of one user on one machine.
//
// They lie in a folder that only this user can enter (mode 0700): nobody else can take a name, or connect. Beside that
// the kernel says who is at the other end (SO_PEERCRED), which cannot be forged, and both sides ask. The folder is
// opened first and the name is taken relative to it, so nobody can swap one folder for another meanwhile, and a long
// path does no harm. Needs /proc.
//
// A socket's file stays when its listener ends; who owns the folder, or the name in it, removes it (runtime_folder.h).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep {

// A listener for packets. PERMISSION_DENIED: the folder is not this user's, or open to others. ALREADY_EXISTS: there is
// a file of that name. INVALID_ARGUMENT: its last part has more than 80 bytes.
StatusOr<Fd> listen_local(const std::string& path);
// The same for a stream; does not block.
StatusOr<Fd> listen_local_stream(const std::string& path);

// NOT_FOUND: nobody listens there. PERMISSION_DENIED: as above, or another user listens.
StatusOr<PacketSocket> connect_local(const std::string& path);
// The same for a stream; does not block. UNAVAILABLE: too many connections wait there; try again.
StatusOr<Fd> connect_local_stream(const std::string& path);

struct Peer {
  pid_t pid = 0;  // 0: it is in another pid namespace
  uid_t uid = 0;
};
// Who is at the other end of a Unix socket. PERMISSION_DENIED: neither this user nor root, who may do anything anyway.
StatusOr<Peer> trusted_peer(int fd);

struct Accepted {
  PacketSocket socket;
  Peer peer;
};
// The next connection. PERMISSION_DENIED, after closing it, when it comes from another user.
StatusOr<Accepted> accept_local(const Fd& listener);

}  // namespace keepstep
