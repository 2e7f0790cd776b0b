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
// Where the other end of a connected socket is.
StatusOr<SocketAddress> peer_address(int fd);
// The next connection of a listening socket; an invalid Fd when there is none now.
StatusOr<Fd> accept_tcp(int listener);
// Begins to connect: writable once that is over, and then socket_error tells how it went.
StatusOr<Fd> start_connect(const SocketAddress& address);
// 0, or the errno a socket has met.
int socket_error(int fd);

// How long a silent other side is taken for one that has nothing to say: 5 s, then it is asked three times, 3 s apart,
// and the socket fails with ETIMEDOUT.
inline constexpr int kKeepaliveIdleS = 5;
inline constexpr int kKeepaliveIntervalS = 3;
inline constexpr int kKeepaliveProbes = 3;

// Small messages leave at once, and a silent other side is asked whether it is there. Not by TCP_USER_TIMEOUT, which
// would also end the connection to a living peer that does not read for so long. `buffer_bytes`: of the kernel, each
// way; 0: what the system tunes by itself, which grows further than an unprivileged program may ask for
// (net.core.wmem_max).
void tune_tcp(int fd, size_t buffer_bytes);

// How long ago the last acknowledgement came on a connected socket, in milliseconds, if something that was sent is not
// acknowledged and the system has repeated it three times or more; else 0. The other side's kernel acknowledges whether
// its program reads or not, even if that is stopped: so what this tells of is the network, or the other machine.
int64_t unacknowledged_ms(int fd);

// `bytes` if the system lets this program have buffers of that size each way (net.core.wmem_max and rmem_max), else 0:
// smaller ones would be slower than those it tunes by itself.
size_t grantable_socket_buffer(size_t bytes);
// The most that the kernel holds for one connection with `buffer_bytes` given to tune_tcp, both ways together; 0: not
// known.
uint64_t most_socket_memory(size_t buffer_bytes);

// This machine's, for messages.
std::string host_name();

}  // namespace keepstep
