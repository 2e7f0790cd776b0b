// A connection to this machine's memory server. One thread at a time; MemoryStore has one for each thread that calls
// it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "checkpoint/memory/protocol.h"

namespace keepstep::checkpoint::memory {

// What the server is told of a destination when somebody connects.
struct DestinationSettings {
  std::string name;
  std::string drain;                               // a URL; empty: what was said before stays
  uint64_t drain_keep = 0;                         // complete checkpoints that stay there; 0: all
  std::map<std::string, std::string> environment;  // where S3 finds credentials, for the drain
};

class MemoryLink {
 public:
  // NOT_FOUND: no server runs here. PERMISSION_DENIED: another user's. FAILED_PRECONDITION: one of another version.
  static StatusOr<std::unique_ptr<MemoryLink>> connect(const DestinationSettings& settings);
  // The same, but starts a server if there is none: runs `command memory serve --background`, which returns once one
  // listens. Many processes may do so at once; one server comes of it.
  static StatusOr<std::unique_ptr<MemoryLink>> connect_or_start(const DestinationSettings& settings,
                                                                const std::string& command);

  // Sends a request and waits for the answer, an error as its status. UNAVAILABLE: the server ended.
  StatusOr<Json> ask(const Json& request);

  // The same in two steps, so that several requests are under way. Answers come in order.
  Status send(const Json& request);
  StatusOr<Json> receive();

  // The arena in which this connection hands contents over; made at the first call.
  StatusOr<std::byte*> arena();

  // Reads `into.size()` bytes of the server's memory from `at` on. They must be pinned by a "read" whose answer is the
  // last one on this connection.
  Status read_memory(uint64_t at, std::span<std::byte> into) const;

  int socket() const { return socket_.fd(); }

 private:
  explicit MemoryLink(PacketSocket socket) : socket_(std::move(socket)) {}

  PacketSocket socket_;
  Fd memory_;
  SharedMemory arena_;
};

}  // namespace keepstep::checkpoint::memory
