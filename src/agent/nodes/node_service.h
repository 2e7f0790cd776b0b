// The agent's service to ranks that were started by something else (torchrun, srun, a test): memory to communicate in,
// a Store, and rings of batches (ring_service.h). It starts no ranks and recovers nothing. The first ranks of a job on
// a node start it (`keepstep node`), and it ends when the last one is gone.
//
//   join(key, rank, world)  ->  once all have joined, all get one arena per rank and a generation's page
//   a member ends without leaving, or aborts  ->  the communicator is interrupted; every member learns why
//
// Only processes of the same user can connect: nobody else can enter the folder of its sockets (base/runtime_folder.h).
// On several nodes the Store spans the agents of all of them (store_lines.h); everything else stays within a node.
// run()'s thread is an EventLoop and does all the work.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/loop/event_loop.h"
#include "agent/nodes/store_lines.h"
#include "agent/rings/ring_service.h"
#include "agent/store/rootless_store.h"
#include "agent/workers/outbox.h"
#include "base/fd.h"
#include "base/runtime_folder.h"
#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "comm/comm_config.h"
#include "messages/envelope.h"
#include "messages/rank_messages.h"

namespace keepstep::agent {

class NodeService {
 public:
  // Serves `job`, on one of `nodes` if it has several. ALREADY_EXISTS if another agent on this machine serves it: the
  // name is a lock.
  static StatusOr<std::unique_ptr<NodeService>> create(const std::string& job,
                                                       const std::optional<StoreNodes>& nodes = std::nullopt);
  // Runs until the last client has been gone for a moment, or nobody has connected within half a minute.
  void run();

  size_t refused() const { return refused_; }
  const std::string& path() const { return name_.path(); }

 private:
  struct Client {
    uint32_t id = 0;
    PacketSocket socket;
    Outbox outbox;  // of `socket`
    pid_t pid = 0;
    Fd pidfd;           // its end is watched too, since a child of it may keep the socket open
    std::string group;  // key it joined; empty if none
    uint32_t rank = 0;
  };
  // Ranks that have, or wait for, a common communicator.
  struct Group {
    uint32_t world = 0;
    std::map<uint32_t, uint32_t> members;  // rank to client
    comm::CommConfig config;
    SharedMemory generation;
    std::vector<SharedMemory> arenas;
    bool interrupted = false;
  };

  NodeService(HeldName name, std::unique_ptr<EventLoop> loop, RootlessStore store)
      : name_(std::move(name)), loop_(std::move(loop)), store_(std::move(store)) {}
  StoreLines::Handlers line_handlers();
  void on_connection();
  void on_packet(const std::shared_ptr<Client>& client);
  Status on_message(Client& client, const messages::ToService& message, std::vector<Fd> fds);
  void on_join(Client& client, const messages::Join& join);
  void on_abort(const Client& client, const messages::Abort& abort);
  void on_store(Client& client, const messages::StoreQuestion& question, std::string value);
  void carry_out(const RootlessStore::Replies& replies);
  Status admit(Client& client, const std::string& key, uint32_t rank, uint32_t world);
  Status open(Group& group);
  void leave(Client& client);
  void interrupt(Group& group, const std::string& because);
  void on_exit(const std::shared_ptr<Client>& client);
  void on_end(const std::shared_ptr<Client>& client);
  template <typename Message>
  void tell(Client& client, const Message& message, std::span<const int> fds = {}) {
    tell_text(client, messages::write(message), fds);
  }
  template <typename Message>
  void tell_all(const Group& group, const Message& message, std::span<const int> fds = {}) {
    for (const auto& [rank, client] : group.members) {
      tell(*clients_.at(client), message, fds);
    }
  }
  void tell_text(Client& client, std::string text, std::span<const int> fds);
  void stop_if_idle();

  HeldName name_;  // released last
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<RingService> rings_;
  Fd listener_;
  RootlessStore store_;
  std::unique_ptr<StoreLines> lines_;  // null on a single node
  std::map<uint32_t, std::shared_ptr<Client>> clients_;
  std::map<std::string, Group> groups_;
  size_t refused_ = 0;
  int64_t idle_since_ns_ = 0;
  bool anybody_came_ = false;
};

}  // namespace keepstep::agent
