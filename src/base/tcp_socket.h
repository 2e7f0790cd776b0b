// TCP sockets by numeric address: no name is ever looked up. All are non-blocking and close on exec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

// "10.0.0.7:4711" or "[fd00::7]:4711".
struct SocketAddress {
  std::string ip;
  uint16_t port = 0;
  bool operator==(const SocketAddress&) const = default;

  // INVALID_ARGUMENT for anything but a numeric address and a port.
  static StatusOr<SocketAddress> parse(std::string_view text);
  std::string text() const;
};

// Listens on `address`; port 0: one the system chooses. Whoever has a copy of the descriptor keeps the endpoint alive.
StatusOr<Fd> listen_tcp(const SocketAddress& address);
// Where a socket is bound.
StatusOr<SocketAddress> local_address(int fd);
// The next connection of a listening socket; an invalid Fd when there is none now.
StatusOr<Fd> accept_tcp(int listener);
// Begins to connect: writable once that is over, and then socket_error tells how it went.
StatusOr<Fd> start_connect(const SocketAddress& address);
// 0, or the errno a socket has met.
int socket_error(int fd);

// Small messages leave at once. `buffer_bytes`: of the kernel, each way; 0: what the system tunes by itself, which
// grows further than an unprivileged program may ask for (net.core.wmem_max).
void tune_tcp(int fd, size_t buffer_bytes);

}  // namespace keepstep
