// The engine inside a rank: its place in the current generation, and what it does there, put together of its parts.
// Each part has a subject and its own fields: the line to the agent, steps, state transfer, shards, capsules. What
// follows what is its brain's (brain/rank/rank.h), whose shell this is; loops over steps, in Python and in C++, call
// it.
//
// Free of Python, torch and protobuf. Called by the worker's main thread unless a method says otherwise.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "brain/rank/rank.h"
#include "rank/hydrate/state_transfer.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "rank/shards/capsules.h"
#include "rank/shards/shards.h"
#include "rank/vote/steps.h"
#include "state/device/cuda_copy.h"

namespace keepstep::rank {

// How a rank gets ready for its generation.
struct Readiness {
  brain::Fill fill = brain::Fill::kNothing;
  bool gives = false;  // others fill theirs from this rank
  // kCopy: what was written with it. kParts: by shard of the division before, what was written with that.
  std::vector<std::string> texts;
};

class Engine {
 public:
  // Takes the socket to the agent and this worker's memory, and waits for the agent's welcome.
  static StatusOr<std::unique_ptr<Engine>> attach(Fd socket, Fd memory, messages::Texts fingerprint);
  // A clean end, which is not taken for a death.
  ~Engine() { close(); }
  void close();  // the same, for owners that cannot wait for the destructor; idempotent

  // ---- its parts ----
  Steps& steps() { return steps_; }
  StateTransfer& transfer() { return transfer_; }
  Shards& shards() { return shards_; }
  Capsules& capsules() { return capsules_; }
  AgentLine& agent() { return *agent_; }  // any thread
  // As it is now. Any thread.
  brain::RankBrain brain() const {
    const std::lock_guard lock(brain_mutex_);
    return brain_;
  }
  const Assignment& assignment() const { return generation_.assignment; }  // once the brain has a rank
  const brain::Moved& moved() const { return moved_; }                     // with it, because of the one before
  const Activation& activation() const { return generation_.activation; }  // once it is ready
  bool across() const { return generation_.across(); }                     // the generation has members on other nodes
  // The generation's collectives; null before the first assignment. Whoever keeps it must let go before the next
  // wait_assignment: its arena then belongs to the new generation.
  std::shared_ptr<comm::Communicator> communicator() { return generation_.communicator; }

  // ---- membership ----
  // Waits until this worker has a rank in a generation newer than the one it is in. CANCELLED: the job ends.
  StatusOr<Assignment> wait_assignment();
  // What this process protects was built for its rank, and for how state is divided now.
  void built();
  void let_go();  // all of it is gone
  // Answers Prepare with the state we hold, then waits for Activate. ABORTED: interrupted or superseded; start over
  // with wait_assignment. `sharded`: no other rank holds what this one protects; and `as_built`: nothing changed that
  // since it was built.
  StatusOr<Readiness> ready(bool sharded = false, bool as_built = false);
  // The state is about to be filled: until filled() no peer may read it.
  void filling() { set_state(brain::StateKind::kHydrating, activation().version); }
  // Now peers may pull it.
  void filled() { set_state(brain::StateKind::kClean, activation().version); }
  // Waits until all members are clean at the generation's version. ABORTED as above. A target's last word to its
  // sources: it pulls no more.
  Status form();
  // This rank left an interrupted generation, and forgets what was to follow in it. May be repeated.
  void leave();
  // Tells the job that user code failed, and waits until the generation is interrupted, as wait_interruption(). Once it
  // is, an error is the interruption's and nothing is told, unless it is fatal. Whether a link did it is found here.
  Status fail(messages::Faulted failure);
  // Waits until the generation is interrupted: OK then; CANCELLED if the job ends.
  // `what`: why, for the detector of hangs.
  Status wait_interruption(brain::WaitsIn what = brain::WaitsIn::kJoin);
  // Whether the step is to be left; not after the release, when nothing is done again. Any thread.
  bool interrupted() const { return agent_->drained() && !agent_->released(); }
  // What first failed in this generation because the connection to another node broke, or a peer there fell silent; it
  // names both ends. Empty: nothing. An error that user code sees after that is the link's, however torch wrapped it.
  std::string broken_link() const;
  // At the end of a step, for the world changes: waits, with all other ranks, for what the coordinator makes of it.
  // Never OK: ABORTED once the generation is interrupted for it; CANCELLED if the job ends.
  Status pause();
  // The training function returned, or (`on_notice`) left its loop because of a notice: waits until all ranks' did.
  // ABORTED: interrupted. After a notice the job is not over before wait_interruption says CANCELLED.
  Status finish(bool on_notice = false);

  // After finish(): this process entered another recoverable function, and asks for a rank again. Nothing of its
  // generation is used any more.
  void start_again();

  // Before the job's last step, for a notice came: waits, with all other ranks, for the job to end. Never OK: CANCELLED
  // then; ABORTED if the generation is interrupted before.
  Status stop();

  // ---- the loop over steps: `until` is the last one ----
  // What follows. ABORTED: the generation is interrupted. FAILED_PRECONDITION: the update of the last step failed, or
  // this rank is in no generation that formed.
  StatusOr<brain::NextStep> next(brain::Step until);
  // All ranks vote on the step: it counts, on all or on none. Returns the flags of all. ABORTED: it is done again.
  StatusOr<uint32_t> vote(uint32_t flags);
  // After the vote: the update begins. Until it ends no peer may read the state.
  void begin_update() { steps_.begin_update(brain_.step()); }
  // The state is the step's: that is committed.
  void end_update();

  // ---- protected state ----
  // The state is of no version (half an update, say): no peer may read it, and it has to be hydrated.
  void drop_state() { set_state(brain::StateKind::kEmpty, 0); }
  void set_state(brain::StateKind kind, brain::Version version);
  brain::StateWord state() const;

  // ---- the Store (c10d): any thread ----
  // INVALID_ARGUMENT: key or value larger than the Store takes (messages/store_value.h), with both; others: no memory
  // to carry a value in, here or at the agent.
  StatusOr<StoreReply> store(const std::string& op, const std::string& key, const std::string& value,
                             int64_t timeout_ms, bool ends_with_generation = true);

 private:
  explicit Engine(std::unique_ptr<AgentLine> agent);
  // Others may ask meanwhile; this thread alone changes it, and asks without the mutex.
  template <typename Event, typename... Arguments>
  auto tell(Event event, Arguments... arguments) {
    const std::lock_guard lock(brain_mutex_);
    return (brain_.*event)(arguments...);
  }
  // Ends what uses the communicator, then the communicator.
  void leave_generation();

  std::unique_ptr<AgentLine> agent_;
  mutable std::mutex brain_mutex_;
  brain::RankBrain brain_;
  RankGeneration generation_;
  brain::Moved moved_;
  state::CudaCopy copy_;
  Steps steps_;
  StateTransfer transfer_;
  Shards shards_;
  Capsules capsules_;
  bool sharded_ = false;  // so it said when it was ready
};

}  // namespace keepstep::rank
