// One client of the server: a connection on which it asks, answered in order by a thread of its own.
//
// What a client has begun and not committed belongs to its connection, and goes with it: whatever kills the client,
// half an object is never seen. Chunks that it was told of for reading stay where they are until its next request.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "checkpoint/memory/protocol.h"
#include "memory_server/library.h"

namespace keepstep::memory_server {

// What a client says of its destination when it connects.
struct DrainRequest {
  std::string destination;
  std::string url;
  uint64_t keep = 0;
  std::map<std::string, std::string> environment;
};

// What the server does for clients besides objects.
struct Desk {
  std::function<Status(const DrainRequest&)> drain;
  std::function<checkpoint::memory::Json()> status;
  std::function<Status(bool force)> may_stop;
  std::function<void()> stop;  // ends all connections soon
};

class Client {
 public:
  Client(Library& library, const Desk& desk, PacketSocket socket)
      : library_(library), desk_(desk), socket_(std::move(socket)) {}

  void run();  // until the client closes the connection, or breaks the protocol
  int fd() const { return socket_.fd(); }

 private:
  using Json = checkpoint::memory::Json;
  void serve();
  StatusOr<Json> answer(const Json& request, std::vector<Fd> fds);
  StatusOr<Json> hello(const Json& request);
  StatusOr<Json> chunk(const Json& request);
  StatusOr<Json> commit(const Json& request);
  StatusOr<Json> read(const Json& request);
  StatusOr<Json> list(const Json& request);
  StatusOr<Json> folders(const Json& request);
  StatusOr<Shelves::Key> key_of(const Json& request) const;
  std::string words() const { return "memory://" + destination_; }

  Library& library_;
  const Desk& desk_;
  const PacketSocket socket_;
  std::string destination_;  // empty: it has not said hello
  Fd memory_;                // goes out with the answer to hello
  bool stop_ = false;        // the server, once the answer is out
  SharedMemory arena_;
  std::vector<std::byte> scratch_;
  std::vector<Piece> staged_;
  std::vector<Held> pinned_;
  std::vector<ChunkPointer> fetched_;
};

}  // namespace keepstep::memory_server
