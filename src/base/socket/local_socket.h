// Unix sockets with a path, between processes of one user on one machine.
//
// They are in a folder that only this user can enter (mode 0700), so nobody else can take a name or connect. In
// addition, both sides ask the kernel who is at the other end (SO_PEERCRED), which cannot be forged. The folder is
// opened first and the name is resolved relative to it, so nobody can swap the folder in between, and a long path does
// no harm. Needs /proc.
//
// A socket's file remains when its listener closes; the owner of the folder, or of the name in it, removes it
// (runtime_folder.h).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep {

// A packet listener. PERMISSION_DENIED: the folder does not belong to this user, or is open to others. ALREADY_EXISTS:
// a file of that name exists. INVALID_ARGUMENT: the last path component is longer than 80 bytes.
StatusOr<Fd> listen_local(const std::string& path);
// The same for a stream; does not block.
StatusOr<Fd> listen_local_stream(const std::string& path);

// NOT_FOUND: nobody listens there. PERMISSION_DENIED: as above, or another user listens.
StatusOr<PacketSocket> connect_local(const std::string& path);
// The same for a stream; does not block. UNAVAILABLE: too many connections are waiting there; try again.
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
