// The engine inside a rank: its link to the agent, its place in the current generation, the vote, the state word.
//
// Owns one thread (it holds the robust mutex that tells others we live, and reads the agent's messages). Everything
// else is called by the worker's main thread unless a method says otherwise. Free of Python, torch and protobuf.
// When the agent is gone the engine says so and ends the process: a worker without its agent protects nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "brain/copies/shard_copies.h"
#include "comm/communicator.h"
#include "comm/tcp/tcp_config.h"
#include "rank/hydrate/remote_peer.h"
#include "rank/hydrate/remote_source.h"
#include "rank/link/log_ring.h"
#include "rank/link/messages.h"
#include "rank/link/page.h"
#include "rank/link/store_messages.h"
#include "rank/shards/capsule_copies.h"
#include "rank/shards/rank_places.h"
#include "rank/shards/shard_exchange.h"
#include "rank/shards/shard_keepers.h"
#include "rank/shards/shard_notice.h"
#include "rank/shards/shard_replicas.h"
#include "rank/vote/node_vote.h"
#include "rank/vote/step_vote.h"
#include "state/device/cuda_copy.h"
#include "state/hydration.h"

namespace keepstep::worker {

// A rank in a generation, as Prepare gave it.
struct Assignment {
  brain::Identity identity;
  uint32_t rank = 0;
  uint32_t world = 0;
  brain::Version version = 0;
  bool newcomer = false;
  bool resized = false;  // the world is not that of the generation that formed last
  std::string entry;     // "start", "redo", "replacement", ...: why this entry of the loop happens
  std::string because;
  nlohmann::json environment;  // {name: value}: RANK, WORLD_SIZE, ...
  // How sharded state is divided (brain::Sharding), and the division in which `version` is kept: the same or another.
  uint32_t sharding = 0;
  brain::Sharding from;
};

struct Activation {
  brain::Version version = 0;
  std::vector<uint32_t> sources;  // ranks
  std::vector<uint32_t> targets;
  bool compare = false;
  std::vector<uint32_t> copies;            // ranks of whose shard a copy at `version` lies on this node
  std::vector<uint32_t> copies_from;       // the same of the division `from`
  std::vector<brain::ParityBlock> parity;  // that lie there at `version`
};

class Engine {
 public:
  // Takes the socket to the agent and this worker's memory, starts the thread, and waits for the agent's welcome.
  static StatusOr<std::unique_ptr<Engine>> attach(Fd socket, Fd memory, const nlohmann::json& fingerprint);
  // A clean end: the life mutex is unlocked, so nobody takes it for a death.
  ~Engine();
  void close();  // the same, for owners that cannot wait for the destructor; idempotent

  // ---- life ----
  uint32_t worker() const { return worker_; }
  const nlohmann::json& welcome() const { return welcome_; }
  // Any thread: sends one message of this worker's current identity. That the agent is gone is no error here: then we
  // end anyway.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED (messages.h): nothing was sent; standard error says so, too.
  Status send(MessageType type, nlohmann::json body = nlohmann::json::object());

  // ---- membership ----
  // Waits until this worker has a rank in a generation newer than the one it is in. CANCELLED: the job ends.
  StatusOr<Assignment> wait_assignment();
  // Answers Prepare with the state we hold, then waits for Activate. ABORTED: interrupted or superseded; start over
  // with wait_assignment. `sharded`: no other rank holds what this one protects.
  StatusOr<Activation> ready(bool sharded = false);
  // Waits until all members are clean at the generation's version. ABORTED as above. A target's last word to its
  // sources: it pulls no more.
  Status form();
  // Waits until the generation is interrupted: OK then; CANCELLED if the job ends.
  // `what`: why, for the detector of hangs.
  Status wait_interruption(brain::WaitsIn what = brain::WaitsIn::kJoin);
  // The generation's collectives; null before the first assignment. Whoever keeps it must let go before the next
  // wait_assignment: its arena then belongs to the new generation.
  std::shared_ptr<comm::Communicator> communicator() { return communicator_; }
  // Whether the step is to be left; not after the release, when nothing is done again. Any thread.
  bool interrupted() const;
  // What first failed in this generation because the connection to another node broke, or a peer there fell silent; it
  // names both ends. Empty: nothing. An error that user code sees after that is the link's, however torch wrapped it.
  std::string broken_link() const;
  const Assignment& assignment() const { return assignment_; }

  // ---- protected state ----
  void set_state(brain::StateKind kind, brain::Version version);
  brain::StateWord state() const;
  Status publish(std::string manifest, std::vector<state::Region> regions);
  void stop_publishing();  // after form(); nothing where nothing is published
  StatusOr<std::string> pull_manifest(const Activation& activation);
  // Others of this node may read `regions` from when this returned until stop_publishing(), which has to follow form(),
  // or an error before it.
  StatusOr<state::Pulled> pull(const Activation& activation, const std::vector<state::Region>& regions);

  // ---- sharded state: copies instead of peers (shard_replicas.h) ----
  // Between ready() and form(), by all ranks of a generation whose state is sharded: a rank that has none at
  // `activation.version` (`need`) finds a copy of its own, or gets one from another node, or makes it of its group's
  // other blocks. Returns what was written with it; nothing where there is no need, or too little is left. ABORTED,
  // UNAVAILABLE as elsewhere.
  StatusOr<std::optional<std::string>> find_shard(const Activation& activation, bool need);
  // Where the division changed, after that: by shard of the division before, what was written with it; empty where
  // there is no need. Nothing, on all ranks alike: a shard is nowhere. reshard() follows on all ranks, also without
  // need.
  StatusOr<std::optional<std::vector<std::string>>> find_shards_of_before(const Activation& activation, bool need);
  // `shards`: what each of these consists of, `needs`: what this rank holds from now on (state/vault/shard_manifest.h;
  // empty without need), `text`: goes with it. Then this rank's shard of `version` is in memory, for load_shard().
  // FAILED_PRECONDITION: it does not fit, and what.
  Status reshard(brain::Version version, const std::vector<std::string>& shards, const std::string& needs,
                 const std::string& text);
  // After wait_shard(version), with all ranks, before pause(): ranks on nodes that leave give their shard to others.
  Status leave_shard(brain::Version version);
  // After that, with need: fills `regions`, which are what was protected then.
  Status load_shard(brain::Version version, const std::vector<state::Region>& regions);
  // After form(), and after each update: copies `regions` at `version` in the background, to this node and as
  // `protection` says to others, or into parity there (as far as there are so many). They must not change before
  // wait_shard(version).
  Status protect_shard(brain::Version version, std::vector<state::Region> regions, std::string text,
                       const Protection& protection);
  // Before the vote on version + 1. OK when interrupted: the vote finds the seal.
  Status wait_shard(brain::Version version);
  ShardReplicas::Counts shard_counts() const;

  // ---- the step ----
  // `flags`: StepFlag; kFlagDrain is added once a notice came, kFlagPause once this generation is to pause.
  VoteResult vote(brain::Step step, uint32_t flags);
  // Whether this generation is to pause, because the world changes. Any thread.
  bool pause_asked() const { return pause_of_.load(std::memory_order_relaxed) == identity_.load(); }
  // Why the job has to stop soon, as this node's agent was told; empty: it was not. Any thread.
  std::string notice() const;
  // After an interrupted vote: the version the verdict says; CANCELLED if the job ends instead.
  StatusOr<brain::Version> wait_verdict();
  // After a verdict that counts `step`: what vote() would have said of the flags.
  uint32_t decided_flags(brain::Step step) const { return load_flags(*generation(), step); }
  void begin_update(brain::Step step);
  // The state is clean at `step`, and the log says so to the agent. False if the word was sealed meanwhile. Waits for
  // room in the log if has_room() says there is none.
  bool end_update(brain::Step step);
  bool updating() const { return updating_.load(); }

  // What the user wants published with `step`: a JSON object as text. Read by the agent within 100 ms, and after this
  // process's death too. Waits for room like end_update. INVALID_ARGUMENT: more than kMaxLogTextBytes.
  Status log(brain::Step step, std::string_view values);
  // Whether the log has room for any entry, so that the two above do not wait.
  bool has_room() { return log_.has_room(); }
  // Waits until it has: asks the agent to empty the log.
  void make_room();

  // What this rank votes for in `step`; before vote(). Steps without it are not compared.
  void record_digest(brain::Step step, const brain::StepDigest& digest) { store_digest(page(), step, digest); }

  void record_loss(brain::Step step, double sum, uint64_t micro_batches);
  // Mean over all micro-batches of all ranks, added in rank order; valid between the decision on `step` and the vote
  // on step + 1. NaN if no rank recorded one; among several nodes also after a verdict that came without it.
  double mean_loss(brain::Step step) const;

  // Per-rank values of forward as of `version`; at most kCapsuleBytes.
  Status save_capsule(brain::Version version, std::string_view bytes);
  std::optional<std::string> load_capsule(brain::Version version) const;
  // Several nodes (capsule_copies.h): whether this rank has per-rank values, said before form(). form() brings the
  // capsule that was lost with its node, if another node has a copy; then load_capsule() finds it.
  void want_capsule(bool wanted) { wants_capsule_ = wanted; }
  // Whether the generation has members on other nodes: else copy_capsule() does nothing.
  bool across() const { return generation()->across != 0; }
  // Before the vote on `version`: a copy of the capsule to another node, and copies of others to here. OK when
  // interrupted: then the vote finds the seal.
  Status copy_capsule(brain::Version version);

  // ---- injected faults: any thread ----
  // What the agent of a running job wants this worker to carry out, since the last call: a JSON object each
  // (docs/design/wire_worker.md). Usually empty, and then one load.
  std::vector<std::string> take_injections();
  // ---- how far we are, for the agent (progress_words.h) ----
  // The main thread begins with micro-batch `micro_batch` (from 1) of `step`; 0: with the step. Costs one store.
  void at(brain::Step step, uint64_t micro_batch);
  void leave_loop();  // it is in no step
  // A section that may take long begins (+1) or ends (-1): nobody takes us for hung meanwhile. From the main thread.
  void slow(int change);

  // ---- end ----
  // All ranks said kFlagPause: waits, at the end of the step, for what the coordinator makes of it. Like
  // wait_interruption().
  Status pause();

  // The training function returned, or (`on_notice`) left its loop because of a notice: waits until all ranks' did.
  // ABORTED: interrupted. After a notice the job is not over before wait_interruption says CANCELLED.
  Status finish(bool on_notice = false);

  // ---- the Store (c10d): any thread ----
  // INVALID_ARGUMENT: key or value larger than the Store takes (store_messages.h), with both; others: no memory to
  // carry a value in, here or at the agent.
  StatusOr<StoreReply> store(const std::string& op, const std::string& key, const std::string& value,
                             int64_t timeout_ms, bool ends_with_generation = true);

 private:
  struct Prepared {
    Assignment assignment;
    std::vector<uint32_t> workers;      // on this node, by rank
    std::vector<uint32_t> ranks;        // theirs
    RankPlaces places;                  // of all ranks; empty: all are on this node
    Fd listener;                        // where other nodes reach this rank
    std::optional<net::SharedKey> key;  // of the connections to them
    comm::Protection protection = comm::Protection::kTls;
    SharedMemory generation;
  };

  Engine(PacketSocket socket, SharedMemory memory, nlohmann::json fingerprint);
  Status send(MessageType type, nlohmann::json body, std::span<const int> fds);
  void complain(const std::string& what, const Status& why) const;  // on standard error
  ProgressWords& progress() const { return page().progress; }
  WorkerPage& page() const { return *reinterpret_cast<WorkerPage*>(memory_.data()); }
  GenerationPage* generation() const { return generation_.load(); }
  std::vector<uint32_t> own_sources(const Activation& activation) const;
  std::vector<uint32_t> siblings(const Activation& activation) const;
  state::Puller puller(const Activation& activation);
  void run();
  void handle(Message message, std::vector<Fd> fds);
  Status prepare(const Message& message, std::vector<Fd> fds);
  Status check_places(const Prepared& prepared) const;
  void enter(Prepared prepared);
  std::shared_ptr<comm::Transport> transport(Prepared& prepared);
  // Under `mutex_`: waits until `done` says so; ABORTED when the current generation is interrupted or superseded,
  // CANCELLED when the job ended.
  template <typename Done>
  Status wait_in_generation(std::unique_lock<std::mutex>& lock, Done done);
  bool drained() const;     // collectives of this generation complete at once
  bool superseded() const;  // under `mutex_`
  // Hydration across nodes (engine_remote.cc).
  state::Place place_of(uint32_t source);
  void serve_elsewhere();
  void leave_sources();
  Status share_capsules();
  // Sharded state (engine_shards.cc).
  StatusOr<state::ShardVault> vault(nlohmann::json body);
  StatusOr<state::ShardVault> vault_of(comm::Rank rank, uint64_t data_bytes, uint64_t text_room);
  StatusOr<state::ShardVault> vault_holding(comm::Rank rank, brain::Version version);
  StatusOr<state::ShardVault> vault_holding(uint32_t sharding, comm::Rank rank, brain::Version version);
  StatusOr<std::vector<ShardNotice>> share_copies(const std::set<comm::Rank>& here, bool need);
  Status keep_if_sound(state::ShardVault& vault, brain::Version version, Status found);
  // To one that has the shard's memory; the giver knows its copy to be sound.
  Status hand_over(comm::Rank shard, comm::Rank to, brain::Version version);
  Status take_over(comm::Rank shard, comm::Rank from, brain::Version version);
  Status passed_on(const Status& status);
  StatusOr<std::vector<uint32_t>> who_stays();
  StatusOr<state::ShardVault> parity_vault_of(const brain::ParityBlock& block, uint64_t data_bytes, uint64_t text_room);
  StatusOr<state::ShardVault> parity_holding(const brain::ParityBlock& block, brain::Version version);
  // Shards that are rebuilt when a generation forms (engine_parity.cc).
  StatusOr<std::vector<std::vector<uint32_t>>> gather_words(std::vector<uint32_t> mine);
  StatusOr<std::map<brain::ParityBlock, comm::Rank>> share_parity(const std::vector<brain::ParityBlock>& here,
                                                                  const std::vector<comm::Rank>& lost);
  // `giver_of`: who can give the shard of a rank, if it is left.
  Status rebuild_shards(const Activation& activation, const std::vector<comm::Rank>& lost,
                        const std::function<std::optional<comm::Rank>(comm::Rank)>& giver_of);
  StatusOr<std::vector<uint32_t>> take_corrupt_away(const std::map<comm::Rank, brain::Rebuild>& plans,
                                                    brain::Version version, std::vector<brain::ParityBlock>& here);
  StatusOr<state::ShardVault> block_of(const brain::Rebuild& plan, uint32_t block, brain::Version version);
  Status give_blocks(const brain::Rebuild& plan, comm::Rank to, brain::Version version);
  Status rebuild_own(const brain::Rebuild& plan, brain::Version version);
  void note(const char* event, brain::Version version, const std::string& because);
  Status exchange(comm::OpId op);
  bool speaks_for_node() const;  // the lowest rank there
  std::optional<std::string> neighbours_capsule(brain::Version version) const;
  Status await_interruption(const Status& why);
  void tell_fault(brain::Step step, const std::string& what, bool link, bool digests);
  void note_silent_sources();
  // Ends what uses the communicator, then the communicator.
  void leave_generation();

  PacketSocket socket_;
  SharedMemory memory_;
  uint32_t worker_ = 0;
  pid_t pid_ = 0;
  comm::CommConfig comm_config_;
  std::unique_ptr<WorkerLayout> layout_;
  nlohmann::json fingerprint_;
  nlohmann::json welcome_;
  std::atomic<uint32_t> node_{0};
  std::atomic<uint64_t> identity_{0};  // term << 32 | generation, for send()

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool welcomed_ = false;
  std::atomic<bool> released_ = false;  // all ranks finished: nothing is done again, whatever happens to the others
  bool leaving_ = false;
  std::optional<Prepared> prepared_;      // the newest one not entered yet
  std::optional<Activation> activation_;  // of `activation_of_`
  brain::Identity activation_of_;
  brain::Identity interrupted_identity_;  // the newest identity we were told is sealed
  std::optional<std::string> ended_;
  std::vector<std::string> injections_;
  std::atomic<bool> injections_came_{false};
  std::string notice_;
  std::atomic<bool> notice_came_{false};
  std::atomic<uint64_t> pause_of_{0};       // the generation that is to pause, as identity_; 0: none
  std::vector<uint32_t> stay_;              // nodes, as it was told
  std::map<uint32_t, SharedMemory> peers_;  // by worker
  std::map<uint64_t, StoreReply> replies_;
  struct VaultReply {
    bool answered = false;
    std::string error;
    Fd memory;
  };
  std::map<uint64_t, VaultReply> vault_replies_;
  uint64_t next_request_ = 1;

  // The current generation; changed by the main thread only.
  Assignment assignment_;
  std::vector<std::byte*> members_;  // memory by rank; null: on another node
  std::vector<uint32_t> nodes_;      // by rank; empty: all on one
  std::vector<SharedMemory> generations_;
  std::atomic<GenerationPage*> generation_{nullptr};
  std::unique_ptr<NodeVote> node_vote_;  // of its node's leader among several nodes; outlives the communicator
  std::shared_ptr<comm::Communicator> communicator_;
  std::unique_ptr<StepVote> vote_;
  std::atomic<bool> updating_{false};
  LogWriter log_;
  bool committed_here_ = false;  // a step, in this generation
  int64_t committed_ns_ = 0;     // the last one; 0: none in this generation
  int64_t waited_ns_ = 0;        // for others until then
  state::CudaCopy copy_;
  std::unique_ptr<state::Source> source_;
  std::unique_ptr<RemoteSource> remote_source_;                   // while it publishes, for targets elsewhere
  std::map<uint32_t, std::unique_ptr<RemotePeer>> remote_peers_;  // by rank: sources elsewhere
  CapsuleCopies capsule_copies_{kCapsuleBytes};
  Fd inherited_;  // the memory of the rank's process before, for the next assignment; under `mutex_`
  bool wants_capsule_ = false;
  std::mutex vaults_mutex_;
  struct VaultMemory {
    uint32_t sharding = 0;
    SharedMemory memory;
  };
  std::map<uint64_t, VaultMemory> vaults_;  // by inode, of this generation
  bool sharded_ = false;                    // so it said when it was ready
  std::unique_ptr<ShardReplicas> shard_replicas_;
  std::unique_ptr<ShardExchange> shard_exchange_;
  Protection protection_;
  bool settled_ = false;                                // the agent was told
  std::vector<std::vector<std::byte>> rebuild_memory_;  // what a receive that stays behind would write to
  std::string shortfall_;                               // of protection, as it was told last
  std::string silent_source_;                           // of a pull that failed; see broken_link()
  std::thread thread_;
};

template <typename Done>
Status Engine::wait_in_generation(std::unique_lock<std::mutex>& lock, Done done) {
  while (!done()) {
    if (ended_.has_value()) {
      return absl::CancelledError(*ended_);
    }
    if (superseded()) {
      return absl::AbortedError("the generation was interrupted");
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  return absl::OkStatus();
}

}  // namespace keepstep::worker
