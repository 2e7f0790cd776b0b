// Owns the rings of batches of a node's ranks (docs/formats/data_ring.md): their memory, who reads them, and which
// process loads. Part of the agent of `keepstep run` and of the small agent for other launchers.
//
// Ranks that read the same part of one loader's order share a ring. One whose part is in none gets another one, beside
// them, so nobody who reads is disturbed; a ring that is read no more goes as soon as the name has another one.
//
// It listens on a socket of its own, which only processes of the same user reach (base/socket/local_socket.h). One
// connection is one reader of one ring; its end frees the reader's row. A loader process is told apart by the socket
// pair that a rank was handed to start it with. What a client says is checked; a client that says nonsense is let go,
// the others go on.
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
    uint64_t batch = 0;  // the ring's next one then
    pid_t pid = 0;       // of the loader process; 0: it is about none
  };
  using Note = std::function<void(const News& news)>;

  // Listens at `path` (base/socket/local_socket.h). The loop must outlive the service.
  static StatusOr<std::unique_ptr<RingService>> open(EventLoop& loop, const std::string& path, Note note);
  // Ends the loader processes.
  ~RingService();

  // Ranks that wait for a batch look whether they are to go on.
  void ring_bells();
  // The process reads no more, without a word of its own: a rank of an elastic job that has none any more keeps nothing
  // from the others. It finds that it has to join again (RingReader::joined).
  void let_out(pid_t pid);
  size_t clients() const { return clients_.size(); }

 private:
  struct Loader {
    Fd socket;  // its end tells the process that we are gone; before it said hello, ours that it is
    Fd pidfd;   // invalid: it has not said hello
    pid_t pid = 0;
    uint64_t head = 0;     // when it began
    uint64_t starter = 0;  // the client that was to start it
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
    uint64_t ring = 0;  // it reads; 0: none yet
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
  std::vector<uint64_t> rings_of(const std::string& name) const;  // the newest first
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
