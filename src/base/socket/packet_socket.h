// A Unix SOCK_SEQPACKET socket: one packet is one message, and may carry file descriptors.
//
// The agent creates them in pairs and the worker inherits one end. They have no name, so no stranger can connect. One
// reader thread; send() may be called from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace keepstep {

inline constexpr size_t kMaxPacketBytes = 160 * 1024;  // larger ones are refused before memory is allocated
inline constexpr size_t kMaxPacketFds = 65;

struct Packet {
  std::string bytes;
  std::vector<Fd> fds;
  // Set if descriptors arrived but this process could open no more of them: `fds` is empty. kFdsLost is the error
  // message, with the remedy.
  static constexpr char kFdsLost[] =
      "its descriptors were lost: this process has too many open files; raise `ulimit -n`";
  bool fds_lost = false;
};

class PacketSocket {
 public:
  PacketSocket() = default;
  explicit PacketSocket(Fd fd) : fd_(std::move(fd)) {}

  static StatusOr<std::pair<PacketSocket, PacketSocket>> pair();

  // Sends one whole packet; waits for room. UNAVAILABLE: the other side is gone.
  Status send(std::string_view bytes, std::span<const int> fds = {}) const;
  // The same without waiting. RESOURCE_EXHAUSTED: no room. For senders that must not depend on the reader.
  Status try_send(std::string_view bytes, std::span<const int> fds = {}) const;

  // Waits for one packet and returns it. UNAVAILABLE: end of the stream. INVALID_ARGUMENT: the packet was too long and
  // is discarded.
  StatusOr<Packet> receive() const;

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  int release() { return fd_.release(); }  // the caller owns it from here on

 private:
  Status send_flagged(std::string_view bytes, std::span<const int> fds, int flags) const;
  Fd fd_;
};

}  // namespace keepstep
