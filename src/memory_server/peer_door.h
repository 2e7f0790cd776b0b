// The door for other memory servers: TLS with the shared token (src/net). They put copies of their objects here, and
// read what is here.
//
// Each member has a thread. Chunks that it has sent, or was told are here, stay until its next object is put.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.h"
#include "memory_server/library.h"
#include "memory_server/peer_messages.h"
#include "net/listener.h"

namespace keepstep::memory_server {

class PeerDoor {
 public:
  static constexpr size_t kMaxMembers = 128;

  PeerDoor(Library& library, std::string origin) : library_(library), origin_(std::move(origin)) {}
  ~PeerDoor();

  // `socket` listens already. Call once.
  Status open(Fd socket, std::shared_ptr<const net::TlsContext> context);
  net::Listener::Counters counters() const {
    return listener_ == nullptr ? net::Listener::Counters{} : listener_->counters();
  }
  size_t members();

 private:
  struct Member {
    std::unique_ptr<net::Connection> connection;
    std::string origin;  // empty: it has not said hello
    std::map<Digest, ChunkPointer> held;
    std::thread thread;
    std::atomic<bool> over = false;
  };

  void admit(net::TlsStream stream);
  void serve(Member& member);
  StatusOr<PeerMessage> answer(Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> hello(Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> have(Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> copy(Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> copies(const Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> find(const Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> list(const Member& member, const PeerMessage& request);
  StatusOr<PeerMessage> fetch(const PeerMessage& request);

  Library& library_;
  const std::string origin_;
  std::mutex mutex_;
  std::list<Member> members_;
  std::unique_ptr<net::Listener> listener_;
};

}  // namespace keepstep::memory_server
