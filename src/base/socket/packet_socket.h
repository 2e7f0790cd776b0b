// A Unix SOCK_SEQPACKET socket: one packet is one message, with file descriptors beside it.
//
// Made in pairs by the agent and inherited by the worker: no name, so no stranger can connect. One reader thread;
// send() may be called from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

inline constexpr size_t kMaxPacketBytes = 160 * 1024;  // a larger one is refused before memory is taken
inline constexpr size_t kMaxPacketFds = 65;

struct Packet {
  std::string bytes;
  std::vector<Fd> fds;
  // Descriptors came, and this process can have no more: `fds` is empty. Says so, with the way out.
  static constexpr char kFdsLost[] =
      "its descriptors were lost: this process has too many open files; raise `ulimit -n`";
  bool fds_lost = false;
};

class PacketSocket {
 public:
  PacketSocket() = default;
  explicit PacketSocket(Fd fd) : fd_(std::move(fd)) {}

  static StatusOr<std::pair<PacketSocket, PacketSocket>> pair();

  // Sends one packet whole, waiting for room. UNAVAILABLE when the other side is gone.
  Status send(std::string_view bytes, std::span<const int> fds = {}) const;
  // The same without waiting: RESOURCE_EXHAUSTED if there is no room. For a sender that must not depend on the reader.
  Status try_send(std::string_view bytes, std::span<const int> fds = {}) const;

  // Receives one packet, waiting for it. UNAVAILABLE at the end of the stream; INVALID_ARGUMENT: it was too long, and
  // is gone.
  StatusOr<Packet> receive() const;

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  int release() { return fd_.release(); }  // the caller's from here on

 private:
  Status send_flagged(std::string_view bytes, std::span<const int> fds, int flags) const;
  Fd fd_;
};

}  // namespace keepstep
