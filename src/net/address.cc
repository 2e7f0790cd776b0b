#include "net/address.h"

#include <poll.h>

#include <utility>

#include "base/socket/local_socket.h"

namespace keepstep::net {
namespace {

constexpr std::string_view kUnix = "unix:";

}  // namespace

StatusOr<Address> parse_address(std::string_view text) {
  if (!text.starts_with(kUnix)) {
    KEEPSTEP_ASSIGN_OR_RETURN(SocketAddress address, SocketAddress::parse(text));
    return Address(std::move(address));
  }
  UnixPath unix_path{std::string(text.substr(kUnix.size()))};
  if (!unix_path.path.starts_with('/')) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is no address: the path of a socket begins with /", text));
  }
  return Address(std::move(unix_path));
}

std::string text_of(const Address& address) {
  const auto* tcp = std::get_if<SocketAddress>(&address);
  return tcp != nullptr ? tcp->text() : std::string(kUnix) + std::get<UnixPath>(address).path;
}

StatusOr<Fd> listen_at(const Address& address) {
  const auto* tcp = std::get_if<SocketAddress>(&address);
  return tcp != nullptr ? listen_tcp(*tcp) : listen_local_stream(std::get<UnixPath>(address).path);
}

StatusOr<Fd> connect_to(const Address& address, Deadline deadline) {
  const auto* tcp = std::get_if<SocketAddress>(&address);
  if (tcp == nullptr) {
    StatusOr<Fd> fd = connect_local_stream(std::get<UnixPath>(address).path);
    return absl::IsNotFound(fd.status()) ? absl::UnavailableError(fd.status().message()) : std::move(fd);
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, start_connect(*tcp));
  if (!wait_for(fd.get(), POLLOUT, deadline)) {
    return absl::DeadlineExceededError(
        absl::StrFormat("%s does not answer; is the machine down, or does a firewall block the port?", tcp->text()));
  }
  if (const int error = socket_error(fd.get()); error != 0) {
    return errno_status("connect to " + tcp->text(), error);
  }
  tune_tcp(fd.get(), 0);
  return fd;
}

bool wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd one{fd, events, 0};
    if (poll(&one, 1, deadline.poll_ms()) > 0) {
      return true;
    }
    if (deadline.passed()) {
      return false;
    }
  }
}

}  // namespace keepstep::net
