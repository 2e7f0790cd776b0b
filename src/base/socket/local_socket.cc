#include "base/socket/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/private_folder.h"

namespace keepstep {
namespace {

constexpr int kPackets = SOCK_SEQPACKET | SOCK_CLOEXEC;
constexpr int kStream = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 4096;  // the kernel lowers it to net.core.somaxconn

struct SocketName {
  Fd folder;
  sockaddr_un address{};  // valid while the folder is open
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&address); }
};

StatusOr<SocketName> socket_name(const std::string& path) {
  const std::filesystem::path whole(path);
  SocketName name;
  KEEPSTEP_ASSIGN_OR_RETURN(name.folder, open_private(whole.parent_path(), Others::kMayNot));
  const std::string address = absl::StrFormat("/proc/self/fd/%d/%s", name.folder.get(), whole.filename().string());
  if (!whole.has_filename() || address.size() >= sizeof name.address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is no path for a socket: its last part must have 1 to 80 characters", path));
  }
  name.address.sun_family = AF_UNIX;
  std::memcpy(name.address.sun_path, address.data(), address.size());
  return name;
}

StatusOr<Fd> new_socket(int type) {
  Fd fd(socket(AF_UNIX, type, 0));
  if (!fd.valid()) {
    return errno_status("create a socket (raise the limit on open files with `ulimit -n`?)");
  }
  return fd;
}

StatusOr<Fd> listen_at(const std::string& path, int type) {
  KEEPSTEP_ASSIGN_OR_RETURN(const SocketName name, socket_name(path));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket(type));
  if (bind(fd.get(), name.generic(), sizeof name.address) != 0) {
    return errno == EADDRINUSE ? absl::AlreadyExistsError(absl::StrFormat(
                                     "the socket %s exists. If no process listens there any more, remove it", path))
                               : errno_status("bind the socket " + path);
  }
  if (listen(fd.get(), kBacklog) != 0) {
    return errno_status("listen on " + path);
  }
  return fd;
}

StatusOr<Fd> connect_to(const std::string& path, int type) {
  KEEPSTEP_ASSIGN_OR_RETURN(const SocketName name, socket_name(path));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket(type));
  if (connect(fd.get(), name.generic(), sizeof name.address) != 0) {
    return errno == ECONNREFUSED || errno == ENOENT ? absl::NotFoundError("nobody listens at " + path)
                                                    : errno_status("connect to " + path);
  }
  if (const StatusOr<Peer> peer = trusted_peer(fd.get()); !peer.ok()) {
    return Status(peer.status().code(), absl::StrFormat("%s: %s", path, peer.status().message()));
  }
  return fd;
}

}  // namespace

StatusOr<Fd> listen_local(const std::string& path) { return listen_at(path, kPackets); }

StatusOr<Fd> listen_local_stream(const std::string& path) { return listen_at(path, kStream); }

StatusOr<PacketSocket> connect_local(const std::string& path) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, connect_to(path, kPackets));
  return PacketSocket(std::move(fd));
}

StatusOr<Fd> connect_local_stream(const std::string& path) { return connect_to(path, kStream); }

StatusOr<Peer> trusted_peer(int fd) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) {
    return errno_status("ask who is at the other end of a socket");
  }
  if (who.uid != geteuid() && who.uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("process %d of user %d: refused; this process is of user %d", who.pid, who.uid, geteuid()));
  }
  return Peer{who.pid, who.uid};
}

StatusOr<Accepted> accept_local(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    return errno_status("accept a connection");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Peer peer, trusted_peer(fd.get()));
  return Accepted{PacketSocket(std::move(fd)), peer};
}

}  // namespace keepstep
