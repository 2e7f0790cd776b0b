// This machine's memory server: `keepstep memory serve`. One per user and machine; it outlives jobs.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/runtime_folder.h"
#include "base/socket/tcp_socket.h"
#include "base/status.h"
#include "base/token.h"
#include "memory_server/client.h"
#include "memory_server/drains.h"
#include "memory_server/library.h"
#include "memory_server/peer_door.h"
#include "memory_server/peer_links.h"

namespace keepstep::memory_server {

struct ServerOptions {
  uint64_t limit = 0;  // bytes of memory for contents
  // It ends by itself when no client was connected, nothing changed and nothing was drained for so long; 0: never.
  std::chrono::seconds lifetime{0};
  // Other servers: where this one listens for them, and where they are. Both need the token that all share.
  std::optional<SocketAddress> listen;
  std::vector<SocketAddress> peers;
  std::optional<JobToken> token;
};

class Server {
 public:
  static constexpr size_t kMaxClients = 1024;  // each has a thread and some 4 MiB

  // Takes the user's name for it and listens. ALREADY_EXISTS: a server runs here. Others: no folder, no memory.
  static StatusOr<std::unique_ptr<Server>> create(const ServerOptions& options);
  ~Server();

  // The address for peers, with the port that was chosen; std::nullopt: it does not listen.
  const std::optional<SocketAddress>& address() const { return address_; }

  // Serves until stop(), SIGTERM, SIGINT, or the end of its lifetime. Signals must be blocked in all threads.
  void run();
  void stop();  // from any thread

  const std::string& path() const { return name_.path(); }  // of the socket
  Chunks& chunks() { return *chunks_; }
  Drains& drains() { return drains_; }
  size_t clients();

 private:
  using Json = checkpoint::memory::Json;
  struct Connected {
    explicit Connected(std::unique_ptr<Client> given) : client(std::move(given)) {}
    std::unique_ptr<Client> client;
    std::thread thread;
    std::atomic<bool> over = false;
  };

  Server(const ServerOptions& options, HeldName name, Fd stop, std::shared_ptr<Extents> extents);
  Status prepare_peers();
  void accept_one();
  void reap();
  void keep_name();
  bool is_idle();
  void pack(const std::stop_token& stop);
  Json status();
  Status may_stop(bool force);

  const ServerOptions options_;
  HeldName name_;
  Fd listener_;
  const Fd stop_;  // an eventfd
  const std::shared_ptr<Chunks> chunks_;
  Shelves shelves_;
  Library library_;
  Drains drains_;
  const std::string origin_;  // names this process among memory servers
  std::shared_ptr<const net::TlsContext> context_;
  Fd peer_socket_;  // listens; until run() gives it to the door
  std::optional<SocketAddress> address_;
  std::unique_ptr<PeerDoor> door_;
  std::unique_ptr<PeerLinks> links_;
  Desk desk_;
  const int64_t started_ns_;

  std::mutex mutex_;
  std::list<Connected> clients_;

  // Used by run()'s thread only.
  uint64_t seen_changes_ = 0;
  int64_t idle_since_ns_ = 0;

  std::jthread packer_;
};

}  // namespace keepstep::memory_server
