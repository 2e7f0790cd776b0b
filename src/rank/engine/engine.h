// The engine inside a rank: its place in the current generation, and what it does there, composed of parts. Each part
// has one subject and its own fields: the line to the agent, steps, state transfer, shards, capsules. The engine is the
// shell around the rank's brain (brain/rank/rank.h), which decides what follows. The loops over steps, in Python and in
// C++, call the engine.
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
  bool gives = false;  // others fill their state from this rank
  // kCopy: the text saved with the copy. kParts: the texts saved with the previous division's shards, by shard.
  std::vector<std::string> texts;
};

class Engine {
 public:
  // Takes over the socket to the agent and this worker's memory, and waits for the agent's welcome.
  static StatusOr<std::unique_ptr<Engine>> attach(Fd socket, Fd memory, messages::Texts fingerprint);
  // A clean end, which does not count as a death.
  ~Engine() { close(); }
  void close();  // the same, for owners that cannot wait for the destructor; idempotent

  // ---- its parts ----
  Steps& steps() { return steps_; }
  StateTransfer& transfer() { return transfer_; }
  Shards& shards() { return shards_; }
  Capsules& capsules() { return capsules_; }
  AgentLine& agent() { return *agent_; }  // any thread
  // The current state of the brain. Any thread.
  brain::RankBrain brain() const {
    const std::lock_guard lock(brain_mutex_);
    return brain_;
  }
  const Assignment& assignment() const { return generation_.assignment; }  // once the brain has a rank
  const brain::Moved& moved() const { return moved_; }                     // follows from the change to this assignment
  const Activation& activation() const { return generation_.activation; }  // once it is ready
  // The generation's collectives; null before the first assignment. Holders must release it before the next
  // wait_assignment, which gives its arena to the new generation.
  std::shared_ptr<comm::Communicator> communicator() { return generation_.communicator; }

  // ---- membership ----
  // Waits until this worker has a rank in a generation newer than its current one. CANCELLED: the job ends.
  StatusOr<Assignment> wait_assignment();
  // The state that this process protects was built for its rank and for the current sharding.
  void built();
  void let_go();  // all of it has been freed
  // Answers Prepare with the state this rank holds, then waits for Activate. ABORTED: interrupted or superseded; start
  // over with wait_assignment. `sharded`: no other rank holds what this one protects. `as_built`: and it has not
  // changed since it was built.
  StatusOr<Readiness> ready(bool sharded = false, bool as_built = false);
  // The state is about to be filled: no peer may read it until filled().
  void filling() { set_state(brain::StateKind::kHydrating, activation().version); }
  // From now on, peers may pull the state.
  void filled() { set_state(brain::StateKind::kClean, activation().version); }
  // Waits until all members are clean at the generation's version. ABORTED as above. For a target this is the last
  // message to its sources: it pulls no more.
  Status form();
  // This rank has left an interrupted generation, and discards what was to follow in it. May be repeated.
  void leave();
  // Reports to the job that user code failed, and waits like wait_interruption() until the generation is interrupted.
  // If it already is, the failure is a consequence of that, and is not reported unless it is fatal. This method finds
  // out itself whether a broken link was the cause.
  Status fail(messages::Faulted failure);
  // Waits until the generation is interrupted: OK then; CANCELLED if the job ends. `what`: the reason for the wait, for
  // the hang detector.
  Status wait_interruption(brain::WaitsIn what = brain::WaitsIn::kJoin);
  // Whether this rank should leave the step; false after the release, when nothing is redone. Any thread.
  bool interrupted() const { return agent_->collectives_cut_short() && !agent_->released(); }
  // The first failure in this generation caused by a broken connection to another node, or by a peer there that fell
  // silent; it names both ends. Empty if none. Any error that user code sees afterwards is the link's fault, however
  // torch wrapped it.
  std::string broken_link() const;
  // At the end of a step, before the world changes: waits, with all other ranks, for the coordinator's decision. Never
  // OK: ABORTED once the generation has been interrupted for it; CANCELLED if the job ends.
  Status pause();
  // The training function returned, or (`on_notice`) left its loop because of a notice: waits until this is true of all
  // ranks. ABORTED: interrupted. After a notice the job is not over until wait_interruption returns CANCELLED.
  Status finish(bool on_notice = false);

  // After finish(): this process entered another recoverable function, and asks for a rank again. It no longer uses
  // anything of its generation.
  void start_again();

  // A notice stops the job before its last step: waits, with all other ranks, for the job to end. Never OK: CANCELLED
  // then; ABORTED if the generation is interrupted first.
  Status stop();

  // ---- the loop over steps; `until` is the last step ----
  // Returns what to do next. ABORTED: the generation is interrupted. FAILED_PRECONDITION: the update of the last step
  // failed, or this rank is not in a generation that has formed.
  StatusOr<brain::NextStep> next(brain::Step until);
  // All ranks vote on the step, which is committed on all or on none. Returns the union of all flags. ABORTED: the step
  // will be redone.
  StatusOr<uint32_t> vote(uint32_t flags);
  // After the vote: the update begins. No peer may read the state until it ends.
  void begin_update() { steps_.begin_update(brain_.step()); }
  // The state is that of the step, which is now committed.
  void end_update();

  // ---- protected state ----
  // The state belongs to no version (half an update, for example): no peer may read it, and it must be hydrated.
  void drop_state() { set_state(brain::StateKind::kEmpty, 0); }
  void set_state(brain::StateKind kind, brain::Version version);
  brain::StateWord state() const;

  // ---- the Store (c10d): any thread ----
  // INVALID_ARGUMENT, with key and value: one of them is larger than the Store accepts (messages/store_value.h). Other
  // errors: no memory to carry a value, here or at the agent.
  StatusOr<StoreReply> store(const std::string& op, const std::string& key, const std::string& value,
                             int64_t timeout_ms, bool ends_with_generation = true);

 private:
  explicit Engine(std::unique_ptr<AgentLine> agent);
  // Other threads may read the brain meanwhile; this thread alone changes it, and reads it without the mutex.
  template <typename Event, typename... Arguments>
  auto tell(Event event, Arguments... arguments) {
    const std::lock_guard lock(brain_mutex_);
    return (brain_.*event)(arguments...);
  }
  // Ends the users of the communicator, then the communicator.
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
  bool sharded_ = false;  // as this rank said in ready()
};

}  // namespace keepstep::rank
