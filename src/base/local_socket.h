// Unix sockets with a name but without a file: abstract addresses, for processes of one user on one machine.
//
// The kernel says who is at the other end (SO_PEERCRED), which cannot be forged: both sides refuse another user. A name
// is free again the moment its listener ends, and binding it is a lock: only one process can.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/packet_socket.h"
#include "base/status.h"

namespace keepstep {

// A listener for packets. ALREADY_EXISTS when somebody has the name; INVALID_ARGUMENT when it is longer than 100 bytes.
StatusOr<Fd> listen_local(const std::string& name);

// NOT_FOUND when nobody listens; PERMISSION_DENIED when the listener is of another user.
StatusOr<PacketSocket> connect_local(const std::string& name);

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
};
struct Accepted {
  PacketSocket socket;
  Peer peer;
};
// The next connection. PERMISSION_DENIED, after closing it, when it comes from another user (root may always).
StatusOr<Accepted> accept_local(const Fd& listener);

}  // namespace keepstep
