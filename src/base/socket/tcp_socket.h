// TCP sockets by numeric address: names are never resolved. All are non-blocking and close-on-exec.
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

// Listens on `address`; port 0: the system chooses one. The endpoint lives as long as any copy of the descriptor.
StatusOr<Fd> listen_tcp(const SocketAddress& address);
// The address that a socket is bound to.
StatusOr<SocketAddress> local_address(int fd);
// The address of the other end of a connected socket.
StatusOr<SocketAddress> peer_address(int fd);
// The next connection of a listening socket; an invalid Fd if none is waiting.
StatusOr<Fd> accept_tcp(int listener);
// Starts to connect. The socket becomes writable when the attempt ends; socket_error() then gives the result.
StatusOr<Fd> start_connect(const SocketAddress& address);
// The pending error (errno) of a socket, or 0.
int socket_error(int fd);

// Keepalive: after 5 s of silence the other side is probed three times, 3 s apart; then the socket fails with
// ETIMEDOUT.
inline constexpr int kKeepaliveIdleS = 5;
inline constexpr int kKeepaliveIntervalS = 3;
inline constexpr int kKeepaliveProbes = 3;

// Makes small messages leave at once, and turns on keepalive probes. Does not use TCP_USER_TIMEOUT, which would also
// end the connection to a live peer that does not read for that long. `buffer_bytes`: the size of the kernel's buffers,
// each way; 0: the system tunes them, and they can grow beyond what an unprivileged program may ask for
// (net.core.wmem_max).
void tune_tcp(int fd, size_t buffer_bytes);

// Milliseconds since the last acknowledgement on a connected socket, if sent data are unacknowledged and the system has
// retransmitted them three times or more; else 0. The other side's kernel acknowledges whether or not its program
// reads, even if the program is stopped, so this reports a fault of the network or of the other machine.
int64_t unacknowledged_ms(int fd);

// `bytes` if the system allows this program buffers of that size each way (net.core.wmem_max and rmem_max), else 0:
// smaller ones would be slower than those that the system tunes.
size_t grantable_socket_buffer(size_t bytes);
// The most memory that the kernel uses for one connection, both ways together, with this `buffer_bytes` passed to
// tune_tcp; 0: unknown.
uint64_t max_socket_memory(size_t buffer_bytes);

// This machine's name, for messages.
std::string host_name();

}  // namespace keepstep
