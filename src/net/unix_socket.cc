#include "net/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace keepstep::net {
namespace {

constexpr int kBacklog = 4096;  // the kernel lowers it to net.core.somaxconn

struct Place {
  Fd folder;
  sockaddr_un address{};  // good as long as the folder is open
};

StatusOr<Place> place_of(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename();
  const std::string folder = whole.parent_path();
  Place place;
  place.folder.reset(open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status{};
  if (!place.folder.valid() || fstat(place.folder.get(), &status) != 0) {
    return errno_status("open the folder of the socket " + path);
  }
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "the folder of the socket %s must belong to this user (%d) and be closed to others; it belongs to user %d and "
        "has mode %04o (chmod 700?)",
        path, geteuid(), status.st_uid, status.st_mode & 07777));
  }
  const std::string address = absl::StrFormat("/proc/self/fd/%d/%s", place.folder.get(), name);
  if (name.empty() || address.size() >= sizeof place.address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is no path for a socket: its last part must have 1 to 80 characters", path));
  }
  place.address.sun_family = AF_UNIX;
  std::memcpy(place.address.sun_path, address.data(), address.size());
  return place;
}

StatusOr<Fd> new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno_status("create a Unix socket (raise the limit on open files with `ulimit -n`?)");
  }
  return fd;
}

}  // namespace

StatusOr<Fd> listen_unix(const std::string& path) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Place place, place_of(path));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&place.address), sizeof place.address) != 0) {
    return errno == EADDRINUSE ? absl::AlreadyExistsError(absl::StrFormat(
                                     "the socket %s exists. If no process listens there any more, remove it", path))
                               : errno_status("bind the socket " + path);
  }
  if (listen(fd.get(), kBacklog) != 0) {
    return errno_status("listen on " + path);
  }
  return fd;
}

StatusOr<Fd> connect_unix(const std::string& path) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Place place, place_of(path));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&place.address), sizeof place.address) != 0) {
    return absl::UnavailableError(absl::StrFormat("connect to %s: %s", path, strerror(errno)));
  }
  KEEPSTEP_RETURN_IF_ERROR(check_same_user(fd.get(), path));
  return fd;
}

Status check_same_user(int fd, const std::string& peer) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) {
    return errno_status("ask who is at the other end of " + peer);
  }
  if (who.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("process %d at the other end of %s belongs to user %d, not to %d as this one", who.pid, peer,
                        who.uid, geteuid()));
  }
  return absl::OkStatus();
}

}  // namespace keepstep::net
