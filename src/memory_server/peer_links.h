// This server's connections to its peers: copies of its own objects go there, in an order in which they are whole or do
// not exist (brain/memory/copy_order.h), only contents that a peer lacks; and what is not here is read from there.
//
// A peer that cannot be reached is tried again every few seconds; meanwhile it has nothing. One that is this server
// itself is left alone, so all servers may be given the same list.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/socket/tcp_socket.h"
#include "brain/memory/copy_order.h"
#include "memory_server/library.h"
#include "memory_server/peer_messages.h"
#include "net/tls_context.h"

namespace keepstep::memory_server {

class PeerLinks final : public Elsewhere {
 public:
  // `origin`: this server's, random.
  PeerLinks(Library& library, std::string origin, std::shared_ptr<const net::TlsContext> context,
            std::vector<SocketAddress> peers);
  ~PeerLinks() override;

  void start();
  // An own object was put or removed.
  void changed(const Shelves::Key& key);

  ObjectPointer find(const Shelves::Key& key) override;
  std::vector<checkpoint::ObjectInfo> list(const std::string& destination, std::string_view prefix) override;
  StatusOr<ChunkPointer> fetch(const Digest& digest, uint64_t bytes) override;
  void remove(const Shelves::Key& key) override;

  checkpoint::memory::Json describe();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    SocketAddress address;
    bool is_self = false;

    std::mutex asking;  // one question at a time
    std::unique_ptr<net::Connection> questions;
    Clock::time_point ask_again{};  // not before

    std::mutex mutex;  // of all below
    std::condition_variable_any changes;
    brain::CopyOrder order;
    bool connected = false;
    std::string failure;
    uint64_t copied = 0;      // objects
    uint64_t sent_bytes = 0;  // of chunks
    std::jthread thread;
  };

  StatusOr<std::unique_ptr<net::Connection>> connect(Peer& peer);
  // NOT_FOUND also if the peer cannot be reached.
  StatusOr<PeerMessage> question(Peer& peer, const checkpoint::memory::Json& head);
  void run(Peer& peer, const std::stop_token& stop);
  Status copy_all(Peer& peer, net::Connection& connection, const std::stop_token& stop);
  Status copy_one(Peer& peer, net::Connection& connection, const brain::CopyOrder::Turn& turn);

  Library& library_;
  const std::string origin_;
  const std::shared_ptr<const net::TlsContext> context_;
  std::vector<std::unique_ptr<Peer>> peers_;

  struct Found {
    ObjectPointer object;
    Clock::time_point until;
  };
  std::mutex found_mutex_;
  std::map<Shelves::Key, Found> found_;  // so that each piece of a file is not looked for anew
};

}  // namespace keepstep::memory_server
