#include "base/socket/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"

namespace keepstep {
namespace {

constexpr int kBacklog = 4096;  // the kernel lowers it to net.core.somaxconn

struct Name {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

StatusOr<Name> name_of(const SocketAddress& address) {
  Name name;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&name.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&name.storage);
  if (inet_pton(AF_INET, address.ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    name.size = sizeof *v4;
  } else if (inet_pton(AF_INET6, address.ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    name.size = sizeof *v6;
  } else {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is no numeric IPv4 or IPv6 address (names are not looked up)", address.ip));
  }
  return name;
}

StatusOr<Fd> new_socket(const Name& name) {
  Fd fd(socket(name.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return errno_status("create a TCP socket (raise the limit on open files with `ulimit -n`?)");
  }
  return fd;
}

StatusOr<SocketAddress> address_in(const Name& name) {
  char text[INET6_ADDRSTRLEN] = {};
  if (name.storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&name.storage);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return SocketAddress{text, ntohs(v4->sin_port)};
  }
  if (name.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&name.storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return SocketAddress{text, ntohs(v6->sin6_port)};
  }
  return absl::InvalidArgumentError("a socket that is not of TCP");
}

// Calls getsockname or getpeername.
StatusOr<SocketAddress> asked(int (*ask)(int, sockaddr*, socklen_t*), int fd, const char* what) {
  Name name;
  name.size = sizeof name.storage;
  if (ask(fd, name.get(), &name.size) != 0) {
    return errno_status(what);
  }
  return address_in(name);
}

}  // namespace

StatusOr<SocketAddress> SocketAddress::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  SocketAddress address;
  uint32_t port = 0;
  if (colon == std::string_view::npos || !absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrFormat("'%s' is no address of the form IP:PORT", text));
  }
  std::string_view ip = text.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') {
    ip = ip.substr(1, ip.size() - 2);
  }
  address.ip = ip;
  address.port = static_cast<uint16_t>(port);
  KEEPSTEP_RETURN_IF_ERROR(name_of(address).status());
  return address;
}

std::string SocketAddress::text() const {
  return ip.find(':') == std::string::npos ? absl::StrFormat("%s:%d", ip, port) : absl::StrFormat("[%s]:%d", ip, port);
}

StatusOr<Fd> listen_tcp(const SocketAddress& address) {
  KEEPSTEP_ASSIGN_OR_RETURN(Name name, name_of(address));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket(name));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), name.get(), name.size) != 0 || listen(fd.get(), kBacklog) != 0) {
    return errno_status("listen on " + address.text());
  }
  return fd;
}

StatusOr<SocketAddress> local_address(int fd) { return asked(getsockname, fd, "ask where a socket is bound"); }

StatusOr<SocketAddress> peer_address(int fd) { return asked(getpeername, fd, "ask where a socket is connected to"); }

StatusOr<Fd> accept_tcp(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) {
    return fd;
  }
  switch (errno) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:  // gone before we accepted it; for the others see accept(2)
    case EPROTO:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTUNREACH:
      return Fd();
    default:
      return errno_status("accept a connection");
  }
}

StatusOr<Fd> start_connect(const SocketAddress& address) {
  KEEPSTEP_ASSIGN_OR_RETURN(Name name, name_of(address));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, new_socket(name));
  if (connect(fd.get(), name.get(), name.size) != 0 && errno != EINPROGRESS) {
    return errno_status("connect to " + address.text());
  }
  return fd;
}

int socket_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

void tune_tcp(int fd, size_t buffer_bytes) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepaliveIdleS, sizeof kKeepaliveIdleS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveIntervalS, sizeof kKeepaliveIntervalS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepaliveProbes, sizeof kKeepaliveProbes);
  if (buffer_bytes > 0) {
    const int bytes = static_cast<int>(buffer_bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
}

int64_t unacknowledged_ms(int fd) {
  constexpr int kRepeats = 3;  // in a row, each after twice the previous delay: more than a lost packet or two
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0 ||
      info.tcpi_retransmits < kRepeats) {
    return 0;
  }
  return info.tcpi_last_ack_recv;
}

size_t grantable_socket_buffer(size_t bytes) {
  const Fd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    const int wanted = static_cast<int>(bytes);
    int got = 0;
    socklen_t size = sizeof got;
    if (setsockopt(probe.get(), SOL_SOCKET, option, &wanted, sizeof wanted) != 0 ||
        getsockopt(probe.get(), SOL_SOCKET, option, &got, &size) != 0 || got / 2 < wanted) {
      return 0;
    }
  }
  return bytes;
}

uint64_t max_socket_memory(size_t buffer_bytes) {
  if (buffer_bytes > 0) {
    return 2 * 2 * uint64_t{buffer_bytes};  // the kernel doubles the requested size for its own bookkeeping
  }
  uint64_t sum = 0;
  for (const char* name : {"tcp_wmem", "tcp_rmem"}) {
    std::ifstream file(std::string("/proc/sys/net/ipv4/") + name);
    uint64_t least = 0;
    uint64_t usual = 0;
    uint64_t most = 0;
    if (!(file >> least >> usual >> most)) {
      return 0;
    }
    sum += most;
  }
  return sum;
}

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace keepstep
