// A worker's line to its agent: one thread that holds the robust mutex by which our death is noticed, and reads what
// the agent says; what it said last, for who waits for it; and questions that the agent answers.
//
// When the agent is gone the thread says so and ends the process: a worker without its agent protects nothing. Methods
// may be called from any thread; who opens, closes and changes the generation is the main thread.
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
  // In a child that user code forked: the thread, the socket and the peers are its parent's. True: this is one.
  bool leave_to_parent();
  // A clean end: the life mutex is unlocked, so it is not taken for a death.
  void close();

  const SharedMemory& memory() const { return memory_; }
  uint32_t worker() const { return worker_; }
  pid_t pid() const { return pid_; }
  const messages::Welcome& welcome() const { return welcome_; }
  const WorkerLayout& layout() const { return *layout_; }

  // One message of this worker's current identity. That the agent is gone is no error here: then we end anyway.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED (messages/envelope.h): nothing was sent; standard error says so, too.
  template <typename Message>
  Status send(const Message& message, std::span<const int> fds = {}) {
    return send_text(messages::write(message), fds);
  }

  // ---- the generation: main thread ----
  // Waits for a generation newer than the one it is in. CANCELLED: the job ends.
  Status await_prepared();
  // The newest. `members`: the memory of its workers, in their order; valid until the next call.
  Prepared take_prepared(std::vector<std::byte*>* members);
  // Messages are of this one from now on. `interrupted` is set in its page, which outlives the next call.
  void enter(brain::Identity identity, const std::atomic<uint32_t>* interrupted);
  // ABORTED: interrupted or superseded. CANCELLED: the job ended.
  StatusOr<Activation> await_activation();
  // OK once the generation is interrupted.
  Status await_interruption();
  // All ranks finished. The messages tell, not the page: what that says may be of one that died after the release,
  // which is still on its way here.
  Status await_release();
  // Nodes. Another rank's vote may have said that all pause before our agent does.
  StatusOr<std::vector<uint32_t>> await_pause();

  // ---- what was said ----
  bool drained() const;  // collectives of this generation complete at once
  // Nothing is done again, whatever happens to the others.
  bool released() const {
    const brain::Identity of = released_of_.load(std::memory_order_relaxed);
    return of != brain::Identity{} && of == identity_.load();
  }
  bool pause_asked() const { return pause_of_.load(std::memory_order_relaxed) == identity_.load(); }
  bool notice_came() const { return notice_came_.load(std::memory_order_relaxed); }
  std::string notice() const;
  std::vector<messages::Fault> take_injections();

  // ---- questions ----
  // Memory for a shard; the question's id is given here. ABORTED, CANCELLED: the generation, or the job, ended before
  // the answer came.
  StatusOr<Fd> ask_vault(messages::VaultQuestion question);
  // As of Engine::store. `ends_with_generation`: an interruption answers it.
  StatusOr<StoreReply> ask_store(const std::string& op, const std::string& key, const std::string& value,
                                 int64_t timeout_ms, bool ends_with_generation);

 private:
  WorkerPage& page() const { return *reinterpret_cast<WorkerPage*>(memory_.data()); }
  void complain(const std::string& what, const Status& why) const;  // on standard error
  void run();
  Status send_text(std::string text, std::span<const int> fds);
  void handle(const messages::Envelope& envelope, const messages::ToRank& message, std::vector<Fd> fds);
  // What to do with each, under `mutex_`.
  void take(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds);
  void take(const messages::StoreAnswer& message, std::vector<Fd> fds);
  void take(const messages::VaultAnswer& message, std::vector<Fd> fds);
  Status prepare(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds);
  bool superseded() const;  // under `mutex_`
  // Under `mutex_`: waits until `done` says so; ABORTED when the current generation is interrupted or superseded,
  // CANCELLED when the job ended.
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
  brain::Identity newest_;                // that a Prepare came for
  std::optional<Prepared> prepared_;      // the newest one not entered yet
  std::optional<Activation> activation_;  // of `activation_of_`
  brain::Identity activation_of_;
  brain::Identity interrupted_identity_;  // the newest identity we were told is sealed
  std::optional<std::string> ended_;
  std::vector<messages::Fault> injections_;
  std::atomic<bool> injections_came_{false};
  std::atomic<brain::Identity> released_of_;  // the newest generation that was; zeros: none
  std::string notice_;
  std::atomic<bool> notice_came_{false};
  std::atomic<brain::Identity> pause_of_;   // the generation that is to pause; zeros: none
  std::vector<uint32_t> stay_;              // nodes, as it was told
  std::map<uint32_t, SharedMemory> peers_;  // by worker
  Fd inherited_;                            // for the Prepare that follows
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
