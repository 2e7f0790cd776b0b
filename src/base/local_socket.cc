#include "base/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace keepstep {
namespace {

constexpr size_t kMaxNameBytes = 100;

struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

StatusOr<Address> address_of(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a socket name has 1 to %d bytes, this one %d", kMaxNameBytes, name.size()));
  }
  Address result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());  // byte 0 stays NUL: an abstract address
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

StatusOr<Peer> peer_of(int fd) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) {
    return errno_status("ask who is at the other end of a socket");
  }
  return Peer{who.pid, who.uid};
}

bool trusted(const Peer& peer) { return peer.uid == getuid() || peer.uid == 0; }

}  // namespace

StatusOr<Fd> listen_local(const std::string& name) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Address address, address_of(name));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno_status("create a socket (raise the limit on open files with `ulimit -n`?)");
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    return errno == EADDRINUSE ? absl::AlreadyExistsError("another process listens as " + name)
                               : errno_status("listen as " + name);
  }
  if (listen(fd.get(), SOMAXCONN) != 0) {
    return errno_status("listen as " + name);
  }
  return fd;
}

StatusOr<PacketSocket> connect_local(const std::string& name) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Address address, address_of(name));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno_status("create a socket (raise the limit on open files with `ulimit -n`?)");
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    return errno == ECONNREFUSED ? absl::NotFoundError("nobody listens as " + name)
                                 : errno_status("connect to " + name);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Peer peer, peer_of(fd.get()));
  if (!trusted(peer)) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s belongs to user %d, not to user %d: refused", name, peer.uid, getuid()));
  }
  return PacketSocket(std::move(fd));
}

StatusOr<Accepted> accept_local(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    return errno_status("accept a connection");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Peer peer, peer_of(fd.get()));
  if (!trusted(peer)) {
    return absl::PermissionDeniedError(absl::StrFormat("process %d of user %d: refused", peer.pid, peer.uid));
  }
  return Accepted{PacketSocket(std::move(fd)), peer};
}

}  // namespace keepstep
