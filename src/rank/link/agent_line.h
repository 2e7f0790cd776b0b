// A worker's line to its agent: one thread that holds the robust mutex through which the agent notices this worker's
// death, and reads the agent's messages; the latest of each, for threads that wait for it; and questions that the agent
// answers.
//
// If the agent is gone, the thread reports it and ends the process: a worker without its agent protects nothing.
// Methods may be called from any thread, but only the main thread opens, closes and changes the generation.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "messages/envelope.h"
#include "messages/rank_messages.h"
#include "rank/link/assignment.h"
#include "rank/link/page.h"
#include "rank/link/store_reply.h"

namespace keepstep::rank {

class AgentLine {
 public:
  // `memory`: this worker's, with its page.
  AgentLine(PacketSocket socket, SharedMemory memory, messages::Texts fingerprint);
  ~AgentLine() { close(); }
  // Starts the thread, and waits for the agent's welcome. CANCELLED: the job ends.
  Status open();
  bool is_open() const { return thread_.joinable(); }
  // In a child forked by user code: the thread, the socket and the peers belong to its parent. True if this is such a
  // child.
  bool leave_to_parent();
  // A clean end: the life mutex is unlocked, so it does not count as a death.
  void close();

  const SharedMemory& memory() const { return memory_; }
  uint32_t worker() const { return worker_; }
  pid_t pid() const { return pid_; }
  const messages::Welcome& welcome() const { return welcome_; }
  const WorkerLayout& layout() const { return *layout_; }

  // Sends one message with this worker's current identity. A lost agent is not an error here, because the process ends
  // then anyway. INVALID_ARGUMENT, RESOURCE_EXHAUSTED (messages/envelope.h): nothing was sent, which is also reported
  // on standard error.
  template <typename Message>
  Status send(const Message& message, std::span<const int> fds = {}) {
    return send_text(messages::write(message), fds);
  }

  // ---- the generation: main thread ----
  // Waits for a generation newer than the current one. CANCELLED: the job ends.
  Status await_prepared();
  // The newest one. `members`: the memory of its workers, in their order; valid until the next call.
  Prepared take_prepared(std::vector<std::byte*>* members);
  // From now on, messages carry this identity. `interrupted` is set in its page, which outlives the next call.
  void enter(brain::Identity identity, const std::atomic<uint32_t>* interrupted);
  // ABORTED: interrupted or superseded. CANCELLED: the job ended.
  StatusOr<Activation> await_activation();
  // OK once the generation is interrupted.
  Status await_interruption();
  // Waits until all ranks have finished. Follows the messages, not the page: an interruption in the page may be due to
  // a rank that died after the release, while the release is still on its way here.
  Status await_release();
  // Returns the nodes that stay. Another rank's vote may announce the pause before this rank's agent does.
  StatusOr<std::vector<uint32_t>> await_pause();

  // ---- what the agent has announced ----
  bool collectives_cut_short() const;  // collectives of this generation complete at once
  // Nothing is redone from now on, whatever happens to the others.
  bool released() const {
    const brain::Identity of = released_of_.load(std::memory_order_relaxed);
    return of != brain::Identity{} && of == identity_.load();
  }
  bool pause_asked() const { return pause_of_.load(std::memory_order_relaxed) == identity_.load(); }
  bool notice_came() const { return notice_came_.load(std::memory_order_relaxed); }
  std::string notice() const;
  std::vector<messages::Fault> take_injections();

  // ---- questions ----
  // Requests memory for a shard; the question's id is assigned here. ABORTED, CANCELLED: the generation, or the job,
  // ended before the answer came.
  StatusOr<Fd> ask_vault(messages::VaultQuestion question);
  // As for Engine::store. `ends_with_generation`: an interruption ends the wait.
  StatusOr<StoreReply> ask_store(const std::string& op, const std::string& key, const std::string& value,
                                 int64_t timeout_ms, bool ends_with_generation);

 private:
  WorkerPage& page() const { return *reinterpret_cast<WorkerPage*>(memory_.data()); }
  void complain(const std::string& what, const Status& why) const;  // on standard error
  void run();
  Status send_text(std::string text, std::span<const int> fds);
  void handle(const messages::Envelope& envelope, const messages::ToRank& message, std::vector<Fd> fds);
  // Handles each message, under `mutex_`.
  void take(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds);
  void take(const messages::StoreAnswer& message, std::vector<Fd> fds);
  void take(const messages::VaultAnswer& message, std::vector<Fd> fds);
  Status prepare(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds);
  bool superseded() const;  // under `mutex_`
  // Under `mutex_`: waits until `done` is true; ABORTED if the current generation is interrupted or superseded,
  // CANCELLED if the job ended.
  template <typename Done>
  Status wait_in_generation(std::unique_lock<std::mutex>& lock, Done done);

  PacketSocket socket_;
  SharedMemory memory_;
  const messages::Texts fingerprint_;
  const uint32_t worker_;
  const pid_t pid_;
  messages::Welcome welcome_;
  std::unique_ptr<WorkerLayout> layout_;
  std::atomic<uint32_t> node_{0};
  std::atomic<brain::Identity> identity_;  // for send()
  std::atomic<const std::atomic<uint32_t>*> interrupted_{nullptr};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool welcomed_ = false;
  bool leaving_ = false;
  brain::Identity newest_;                // of the latest Prepare
  std::optional<Prepared> prepared_;      // the newest one that has not been entered yet
  std::optional<Activation> activation_;  // of `activation_of_`
  brain::Identity activation_of_;
  brain::Identity interrupted_identity_;  // the newest identity known to be sealed
  std::optional<std::string> ended_;
  std::vector<messages::Fault> injections_;
  std::atomic<bool> injections_came_{false};
  std::atomic<brain::Identity> released_of_;  // the newest generation that was released; zeros: none
  std::string notice_;
  std::atomic<bool> notice_came_{false};
  std::atomic<brain::Identity> pause_of_;   // the generation that is to pause; zeros: none
  std::vector<uint32_t> stay_;              // nodes, from the agent
  std::map<uint32_t, SharedMemory> peers_;  // by worker
  Fd inherited_;                            // for the next Prepare
  struct VaultReply {
    bool answered = false;
    std::string error;
    Fd memory;
  };
  std::map<uint64_t, VaultReply> vault_replies_;
  std::map<uint64_t, StoreReply> replies_;
  std::atomic<uint64_t> next_request_{1};
  std::thread thread_;
};

}  // namespace keepstep::rank
