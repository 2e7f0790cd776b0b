#include "rank/engine/engine.h"

#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/wait_clock.h"

namespace keepstep::rank {

using brain::StateKind;
using brain::StateWord;
using brain::Version;

namespace {

constexpr size_t kMaxReportedBytes = 4000;

}  // namespace

StatusOr<std::unique_ptr<Engine>> Engine::attach(Fd socket, Fd memory, messages::Texts fingerprint) {
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory mapped, SharedMemory::attach(std::move(memory), kHeaderBytes));
  if (reinterpret_cast<const WorkerPage*>(mapped.data())->magic != kWorkerMagic) {
    return absl::InvalidArgumentError("the memory handed to this worker is no worker page of this version of keepstep");
  }
  auto agent = std::make_unique<AgentLine>(PacketSocket(std::move(socket)), std::move(mapped), std::move(fingerprint));
  KEEPSTEP_RETURN_IF_ERROR(agent->open());
  if (agent->memory().size() < agent->layout().bytes) {
    return absl::InvalidArgumentError("the memory handed to this worker is smaller than its layout");
  }
  return std::unique_ptr<Engine>(new Engine(std::move(agent)));
}

Engine::Engine(std::unique_ptr<AgentLine> agent)
    : agent_(std::move(agent)),
      generation_(agent_->memory().data(), agent_->welcome().comm, agent_->layout()),
      steps_(*agent_, generation_),
      transfer_(*agent_, generation_, copy_),
      shards_(*agent_, generation_, copy_),
      capsules_(*agent_, generation_) {}

void Engine::close() {
  if (agent_->is_open() && !agent_->leave_to_parent()) {
    leave_generation();
    agent_->close();
  }
}

void Engine::leave_generation() {
  transfer_.stop_serving();  // it uses the next two
  shards_.stop();
  generation_.communicator.reset();
  shards_.leave_generation();
  transfer_.leave_generation();
}

StatusOr<Assignment> Engine::wait_assignment() {
  KEEPSTEP_RETURN_IF_ERROR(agent_->await_prepared());
  KEEPSTEP_CHECK(generation_.communicator.use_count() <= 1,
                 "somebody still uses the communicator of the previous generation");
  leave_generation();
  steps_.leave_generation();
  std::vector<std::byte*> here;
  Prepared prepared = agent_->take_prepared(&here);
  if (sharded_ && assignment().sharding != prepared.assignment.sharding) {
    set_state(StateKind::kEmpty, 0);  // it holds a part of another sharding
  }
  generation_.enter(prepared, here);
  agent_->enter(assignment().identity, &generation_.page.load()->interrupted);
  steps_.leave_loop();
  generation_.make_communicator(prepared);
  capsules_.enter(std::move(prepared.inherited));
  steps_.enter([this] { return broken_link(); });
  moved_ = tell(&brain::RankBrain::assigned,
                brain::Assignment{assignment().rank, assignment().world, assignment().sharding}, assignment().version);
  return assignment();
}

void Engine::built() { tell(&brain::RankBrain::built); }
void Engine::let_go() { tell(&brain::RankBrain::let_go); }

StatusOr<Readiness> Engine::ready(bool sharded, bool as_built) {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);
  KEEPSTEP_RETURN_IF_ERROR(steps_.open());
  sharded_ = sharded;
  const StateWord word = state();
  (void)agent_->send(messages::Ready{word.kind, word.version, sharded});
  KEEPSTEP_ASSIGN_OR_RETURN(generation_.activation, agent_->await_activation());
  const brain::Joining joining =
      tell(&brain::RankBrain::activated, activation().sources, activation().targets, word, sharded, as_built);
  if (!sharded) {
    return Readiness{joining.fill, joining.gives, {}};
  }
  const bool need = joining.fill != brain::Fill::kNothing;
  KEEPSTEP_ASSIGN_OR_RETURN(Shards::Found found, shards_.find(activation(), need));
  if (!need) {
    return Readiness{};
  }
  Readiness readiness{brain::RankBrain::found(found.copy.has_value(), !found.parts.empty()), false,
                      std::move(found.parts)};
  if (found.copy.has_value()) {
    readiness.texts = {*std::move(found.copy)};
  }
  return readiness;
}

Status Engine::form() {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kJoin);
  transfer_.say_goodbye();
  KEEPSTEP_RETURN_IF_ERROR(capsules_.share());
  KEEPSTEP_RETURN_IF_ERROR(steps_.form());
  tell(&brain::RankBrain::joined);
  return absl::OkStatus();
}

void Engine::leave() { tell(&brain::RankBrain::left); }

Status Engine::fail(messages::Faulted failure) {
  if (interrupted() && !failure.fatal) {
    return absl::OkStatus();
  }
  failure.what.resize(std::min(failure.what.size(), kMaxReportedBytes));
  // Once a link has broken, failures are the link's fault and not user code's.
  failure.link = !failure.fatal && !broken_link().empty();
  (void)agent_->send(failure);
  return wait_interruption();
}

Status Engine::wait_interruption(brain::WaitsIn what) {
  const Waiting waiting(generation_.progress(), what);
  return agent_->await_interruption();
}

std::string Engine::broken_link() const {
  const std::string broken =
      generation_.communicator == nullptr ? std::string() : generation_.communicator->broken_link();
  return broken.empty() ? transfer_.silent_source() : broken;
}

Status Engine::pause() {
  steps_.leave_loop();
  (void)agent_->send(messages::Paused{});
  KEEPSTEP_RETURN_IF_ERROR(wait_interruption(brain::WaitsIn::kPause));
  return absl::AbortedError("the world changes");
}

Status Engine::finish(bool on_notice) {
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kEnd);
  shards_.finish();
  (void)agent_->send(messages::Finished{on_notice});
  KEEPSTEP_RETURN_IF_ERROR(agent_->await_release());
  if (!on_notice) {
    tell(&brain::RankBrain::finished);
  }
  return absl::OkStatus();
}

void Engine::start_again() {
  leave_generation();
  steps_.leave_generation();
  set_state(StateKind::kEmpty, 0);
  capsules_.clear();
  sharded_ = false;
  tell(&brain::RankBrain::start_again);
}

Status Engine::stop() {
  KEEPSTEP_RETURN_IF_ERROR(finish(true));
  KEEPSTEP_RETURN_IF_ERROR(wait_interruption());
  return absl::AbortedError("the generation ended before the job stopped");
}

StatusOr<brain::NextStep> Engine::next(brain::Step until) {
  if (brain_.phase() == brain::RankPhase::kVoted && !interrupted()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d was voted on and its update failed: let the failure pass, so that this rank's state is hydrated again",
        brain_.step()));
  }
  if (brain_.phase() == brain::RankPhase::kFinished || (!brain_.formed() && !interrupted())) {
    return absl::FailedPreconditionError("this rank has left the loop over steps for good, but the loop went on");
  }
  const brain::NextStep next = tell(&brain::RankBrain::next, until, interrupted());
  if (next == brain::NextStep::kLeave) {
    return absl::AbortedError("the generation ended");
  }
  if (next == brain::NextStep::kStep) {
    steps_.at(brain_.step(), 0);
  }
  return next;
}

StatusOr<uint32_t> Engine::vote(uint32_t flags) {
  const brain::Step step = brain_.step();
  tell(&brain::RankBrain::voting);
  const VoteResult result = steps_.vote(step, flags);
  if (tell(&brain::RankBrain::voted, result.decided, result.flags) == brain::AfterVote::kUpdate) {
    return result.flags;
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Version verdict, steps_.wait_verdict());
  if (!brain_.counts(verdict)) {
    return absl::AbortedError(absl::StrFormat("step %d is done again", step));
  }
  return steps_.decided_flags(step);
}

void Engine::end_update() {
  steps_.end_update(brain_.step());
  tell(&brain::RankBrain::updated);
}

void Engine::set_state(StateKind kind, Version version) {
  rank::set_state(generation_.own_page(), StateWord{kind, version});
}

StateWord Engine::state() const { return brain::unpack_state_word(generation_.own_page().state.load()); }

StatusOr<StoreReply> Engine::store(const std::string& op, const std::string& key, const std::string& value,
                                   int64_t timeout_ms, bool ends_with_generation) {
  if (gettid() != agent_->pid()) {
    return agent_->ask_store(op, key, value, timeout_ms, ends_with_generation);
  }
  const Waiting waiting(generation_.progress(), brain::WaitsIn::kStore);
  const std::shared_ptr<comm::Communicator> communicator = generation_.communicator;
  if (communicator != nullptr) {
    communicator->waits().begin(0, monotonic_ns());
  }
  StatusOr<StoreReply> reply = agent_->ask_store(op, key, value, timeout_ms, ends_with_generation);
  if (communicator != nullptr) {
    communicator->waits().end(monotonic_ns());
  }
  return reply;
}

}  // namespace keepstep::rank
