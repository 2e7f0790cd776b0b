// The address of a listener: "10.0.0.7:4711" or "[fd00::7]:4711" (numeric; port 0: any free port), or "unix:PATH".
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "base/fd.h"
#include "base/socket/tcp_socket.h"
#include "base/status.h"
#include "net/deadline.h"

namespace keepstep::net {

struct UnixPath {
  std::string path;
  bool operator==(const UnixPath&) const = default;
};

using Address = std::variant<SocketAddress, UnixPath>;

// INVALID_ARGUMENT for anything else. A unix path must be absolute, because the two processes have different working
// folders.
StatusOr<Address> parse_address(std::string_view text);
std::string text_of(const Address& address);

// A non-blocking listening socket at `address`. Errors: tcp_socket.h, local_socket.h.
StatusOr<Fd> listen_at(const Address& address);
// A connected, non-blocking socket. UNAVAILABLE: nothing listens there, or it is unreachable. DEADLINE_EXCEEDED.
StatusOr<Fd> connect_to(const Address& address, Deadline deadline);

// Waits until `fd` is ready for `events` (as for poll()) or has failed. False: the deadline passed first.
bool wait_for(int fd, short events, Deadline deadline);

}  // namespace keepstep::net
