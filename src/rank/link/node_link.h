// Connects a rank that keepstep did not start (torchrun, srun, a test) to its node's agent, for a Store and
// communicators.
//
// The agent listens under a name derived from the job (`node_name`); it is started automatically if there is none
// (python/keepstep/_node.py). A link is either a Store or, after `join`, the membership of one communicator. A rank
// that loses the link loses that membership, so the end of its process ends its part in the communicator. There is no
// recovery here: if a member ends without leave(), the communicator is interrupted for all the others.
//
// Threads: a thread of its own reads the agent's messages. All methods may be called from any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "messages/envelope.h"
#include "messages/rank_messages.h"
#include "rank/link/store_reply.h"

namespace keepstep::rank {

// The name held by the agent that serves `job` on this machine (base/runtime_folder.h). Any text; it is hashed.
std::string node_name(const std::string& job);
// What one agent of a job on several nodes serves: two of them may be on one machine, and one that was started with
// another list of nodes is another one.
std::string job_on_node(const std::string& job, const std::string& nodes, uint32_t self);
// Where the agent that listens at `path` answers for rings.
inline std::string rings_beside(const std::string& path) { return path + "+rings"; }

class NodeLink {
 public:
  // NOT_FOUND if the job has no agent here (any more).
  static StatusOr<std::unique_ptr<NodeLink>> connect(const std::string& job);
  // A clean end: leaves the communicator, which must not be used afterwards.
  ~NodeLink();
  void close();  // the same, for owners that cannot wait for the destructor; idempotent

  // Becomes `rank` of the `world` ranks that join under `key`, and waits for the others. Once per link.
  // DEADLINE_EXCEEDED after `timeout_ms` (< 0: no limit) names the missing ranks; FAILED_PRECONDITION if the rank is
  // taken or the others gave a different world size; UNAVAILABLE if the agent is gone.
  Status join(const std::string& key, uint32_t rank, uint32_t world, int64_t timeout_ms);
  // After join. Holders must release it before close().
  std::shared_ptr<comm::Communicator> communicator() { return communicator_; }
  // Where the agent answers for rings (ring_link.h).
  std::string rings_socket() const { return rings_beside(path_); }
  // Interrupts the communicator for all its ranks, within microseconds on this node, and tells them why.
  void abort(const std::string& because);
  bool interrupted() const;
  // Why the communicator was interrupted; waits a moment for the agent's reason. Empty if it was not interrupted.
  std::string why_interrupted() const;

  // Errors as for Engine::store.
  StatusOr<StoreReply> store(const std::string& op, const std::string& key, const std::string& value,
                             int64_t timeout_ms);

 private:
  NodeLink(PacketSocket socket, std::string path) : socket_(std::move(socket)), path_(std::move(path)) {}
  void run();
  void handle(const messages::FromService& message, std::vector<Fd> fds);
  Status enter(const messages::Members& members, std::vector<Fd> fds);  // under mutex_
  // run() detects a lost agent.
  template <typename Message>
  void send(const Message& message, std::span<const int> fds = {}) {
    (void)messages::send_encoded(socket_, messages::encode({.text = messages::write(message)}), fds, true);
  }

  PacketSocket socket_;
  const std::string path_;  // of the agent's socket
  pid_t pid_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool welcomed_ = false;
  bool leaving_ = false;
  bool lost_ = false;  // the agent is gone
  std::optional<std::string> refused_;
  std::optional<std::string> because_;  // why it was interrupted
  std::vector<uint32_t> missing_;
  std::map<uint64_t, StoreReply> replies_;
  uint64_t next_request_ = 1;

  uint32_t rank_ = 0;
  uint32_t world_ = 0;
  SharedMemory generation_;
  comm::CommConfig config_;
  std::vector<SharedMemory> arenas_;  // by rank
  std::shared_ptr<comm::Communicator> communicator_;
  std::thread thread_;
};

}  // namespace keepstep::rank
