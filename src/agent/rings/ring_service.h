// Owns the rings of batches of a node's ranks (docs/formats/data_ring.md): their memory, who reads them, and which
// process loads. Part of the agent of `keepstep run`, and of the small agent that serves other launchers.
//
// Ranks that read the same part of one loader's order share a ring. A rank whose part is in no ring gets a new ring,
// next to the others, so no reader is disturbed. A ring that nobody reads is removed as soon as another ring has its
// name.
// them, so nobody who reads is disturbed; a ring that is read no more goes as soon as the name has another one.
//
// It listens on its own socket, which only processes of the same user can reach (base/socket/local_socket.h). One
// connection is one reader of one ring; when it ends, the reader's row is freed. A loader process is identified by the
// socket pair that a rank was handed to start it with. Client messages are checked; a client that sends invalid ones is
// disconnected, and the others go on.
//
// Loop thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/loop/event_loop.h"
#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "data/ring/ring.h"
#include "messages/ring_messages.h"

namespace keepstep::agent {

class RingService {
 public:
  // What happened to a ring, for the journal.
  struct News {
    std::string event;
    std::string because;
    std::string ring;
    uint64_t batch = 0;  // the ring's next batch at that time
    pid_t pid = 0;       // of the loader process; 0 if it is not about one
  };
  using Note = std::function<void(const News& news)>;

  // Listens at `path` (base/socket/local_socket.h). The loop must outlive the service.
  static StatusOr<std::unique_ptr<RingService>> open(EventLoop& loop, const std::string& path, Note note);
  // Ends the loader processes.
  ~RingService();

  // Wakes ranks that wait for a batch, to check whether they should go on.
  void ring_bells();
  // The process reads no more, although it did not say so: a process of an elastic job that lost its rank must not hold
  // back the others. It notices that it has to join again (RingReader::joined).
  void let_out(pid_t pid);
  size_t clients() const { return clients_.size(); }

 private:
  struct Loader {
    Fd socket;  // if it closes, the other side is gone; before hello it is our only sign of that
    Fd pidfd;   // invalid until it says hello
    pid_t pid = 0;
    uint64_t head = 0;     // of the ring when it began
    uint64_t starter = 0;  // the client asked to start it
  };
  struct Ring {
    std::string name;
    std::unique_ptr<data::RingOwner> owner;
    std::map<uint64_t, uint32_t> rows;  // by client
    std::optional<Loader> loader;
    uint32_t deaths = 0;  // of loader processes since the last new item
  };
  struct Client {
    PacketSocket socket;
    pid_t pid = 0;
    Fd pidfd;           // a child of it may keep the socket open
    uint64_t ring = 0;  // the ring it reads; 0 if none yet
  };

  RingService(EventLoop& loop, Fd listener, Note note)
      : loop_(loop), listener_(std::move(listener)), note_(std::move(note)) {}
  void on_connection();
  void on_packet(uint64_t id);
  void open(uint64_t id, const messages::OpenRing& request);
  void grant_loader(uint64_t id);
  StatusOr<uint32_t> join(uint64_t incarnation, const data::RingSpec& spec, uint64_t position, pid_t pid);
  StatusOr<uint64_t> make_ring(const std::string& name, const data::RingSpec& spec, uint64_t position,
                               const std::string& why);
  std::vector<uint64_t> rings_of(const std::string& name) const;  // newest first
  void end_ring(uint64_t incarnation);
  void end_unread(const std::string& name, uint64_t but);
  void on_loader_hello(uint64_t incarnation);
  void on_loader_end(uint64_t incarnation);
  void loader_gone(uint64_t incarnation, const std::string& how, bool its_own_fault = true);
  void end_loader(Ring& ring);
  void free_row(uint64_t id);
  void stop_reading(uint64_t id);
  void let_go(uint64_t id);
  void answer(uint64_t id, const messages::RingAnswer& answer, std::span<const int> fds = {});
  void refuse(uint64_t id, const std::string& because);

  EventLoop& loop_;
  Fd listener_;
  Note note_;
  std::map<uint64_t, Client> clients_;
  std::map<uint64_t, Ring> rings_;  // by incarnation
  std::map<int, Fd> dying_;         // pidfds of loader processes that were killed
  uint64_t next_client_ = 1;
  uint64_t next_incarnation_ = 1;
};

}  // namespace keepstep::agent
