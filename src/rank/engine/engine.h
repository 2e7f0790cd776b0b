// The engine inside a rank: its place in the current generation, and what it does there, put together of its parts.
// Each part has a subject and its own fields: the line to the agent, steps, state transfer, shards, capsules.
//
// Free of Python, torch and protobuf. Called by the worker's main thread unless a method says otherwise.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rank/hydrate/state_transfer.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "rank/shards/capsules.h"
#include "rank/shards/shards.h"
#include "rank/vote/steps.h"
#include "state/device/cuda_copy.h"

namespace keepstep::rank {

class Engine {
 public:
  // Takes the socket to the agent and this worker's memory, and waits for the agent's welcome.
  static StatusOr<std::unique_ptr<Engine>> attach(Fd socket, Fd memory, const nlohmann::json& fingerprint);
  // A clean end, which is not taken for a death.
  ~Engine() { close(); }
  void close();  // the same, for owners that cannot wait for the destructor; idempotent

  // ---- its parts ----
  Steps& steps() { return steps_; }
  StateTransfer& transfer() { return transfer_; }
  Shards& shards() { return shards_; }
  Capsules& capsules() { return capsules_; }
  AgentLine& agent() { return *agent_; }  // any thread
  const Assignment& assignment() const { return generation_.assignment; }
  bool across() const { return generation_.across(); }  // the generation has members on other nodes
  // The generation's collectives; null before the first assignment. Whoever keeps it must let go before the next
  // wait_assignment: its arena then belongs to the new generation.
  std::shared_ptr<comm::Communicator> communicator() { return generation_.communicator; }

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
  // Whether the step is to be left; not after the release, when nothing is done again. Any thread.
  bool interrupted() const { return agent_->drained() && !agent_->released(); }
  // What first failed in this generation because the connection to another node broke, or a peer there fell silent; it
  // names both ends. Empty: nothing. An error that user code sees after that is the link's, however torch wrapped it.
  std::string broken_link() const;
  // All ranks said kFlagPause: waits, at the end of the step, for what the coordinator makes of it. Like
  // wait_interruption().
  Status pause();
  // The training function returned, or (`on_notice`) left its loop because of a notice: waits until all ranks' did.
  // ABORTED: interrupted. After a notice the job is not over before wait_interruption says CANCELLED.
  Status finish(bool on_notice = false);

  // ---- protected state ----
  void set_state(brain::StateKind kind, brain::Version version);
  brain::StateWord state() const;

  // ---- the Store (c10d): any thread ----
  // INVALID_ARGUMENT: key or value larger than the Store takes (store_messages.h), with both; others: no memory to
  // carry a value in, here or at the agent.
  StatusOr<StoreReply> store(const std::string& op, const std::string& key, const std::string& value,
                             int64_t timeout_ms, bool ends_with_generation = true);

 private:
  explicit Engine(std::unique_ptr<AgentLine> agent);
  // Ends what uses the communicator, then the communicator.
  void leave_generation();

  std::unique_ptr<AgentLine> agent_;
  RankGeneration generation_;
  state::CudaCopy copy_;
  Steps steps_;
  StateTransfer transfer_;
  Shards shards_;
  Capsules capsules_;
  bool sharded_ = false;  // so it said when it was ready
};

}  // namespace keepstep::rank
