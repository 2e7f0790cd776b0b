// The agent's part for elastic jobs: its ranks pause when the world is to change, and a node that was told to leave hands
// its ranks' work over and ends, while the job goes on.

#include <csignal>
#include <cstring>

#include "agent/agent.h"
#include "base/clock.h"

namespace keepstep::agent {

using worker::MessageType;

// Ranks of the running generation; before there is one, those that the job starts with at least.
uint32_t Agent::world() const {
  return generation_ == nullptr ? config_.spec.world_size() : generation_->prepare().table.world_size();
}

void Agent::pause(const brain::Pause& effect) {
  if (generation_ == nullptr || generation_->identity() != effect.identity || effect.identity <= sealed_) {
    return;
  }
  for (const auto& process : living_members()) {
    tell(*process, MessageType::kPause, effect.identity, {{"because", effect.because}});
  }
}

// What had ranks here goes on elsewhere, or is not needed any more.
void Agent::part(const brain::Part& effect) {
  pump_.say(absl::StrFormat("keepstep: node %d has left, and the job goes on without it: %s", config_.node,
                            effect.because));
  leave_by_ns_ = 0;
  carry_out(brain::EndJob{0, "", ""});
}

// SIGTERM, or a notice: the node leaves. Again, or on node 0, whose launcher holds the coordinator: as in any job.
bool Agent::leave_on(int signal) {
  const bool told = signal == SIGTERM || signal == SIGUSR1;
  if (!told || !config_.spec.elastic || config_.node == 0 || generation_ == nullptr || end_.has_value() ||
      leave_by_ns_ != 0) {
    return false;
  }
  const brain::Time grace = config_.spec.elastic->graceful_shutdown_timeout;
  leave_by_ns_ = monotonic_ns() + grace.count();
  const std::string because =
      absl::StrFormat("SIG%s came to node %d (%s)", sigabbrev_np(signal), config_.node, config_.node_name);
  pump_.say(absl::StrFormat("keepstep: %s: it leaves within %g s, and the job goes on", because,
                            std::chrono::duration<double>(grace).count()));
  journal_.write("notice", generation_->identity(), because, {{"signal", int64_t{signal}}});
  link_->send(brain::NodeLeaves{config_.node, because});
  return true;
}

// Whoever told us to leave will not wait: then this node goes like one that is lost.
void Agent::leave_in_time() {
  if (leave_by_ns_ == 0 || end_.has_value() || monotonic_ns() < leave_by_ns_) {
    return;
  }
  leave_by_ns_ = 0;
  gives_up_ = true;
  carry_out(brain::EndJob{1,
                          absl::StrFormat("node %d was told to leave and ends now, at the end of its time "
                                          "(--graceful-shutdown-timeout): its ranks could not be given up before",
                                          config_.node),
                          ""});
}

// `keepstep scale`, as the control door hands it on: {replicas: N or null} or {policy: {..}}.
StatusOr<std::string> Agent::scale(const nlohmann::json& request) {
  if (!config_.spec.elastic) {
    return absl::FailedPreconditionError(
        "the job is not elastic, so its size cannot be changed; start it with --nnodes MIN:MAX");
  }
  if (config_.node != 0) {
    return absl::FailedPreconditionError("ask node 0 of the job: it decides on its size");
  }
  brain::ElasticPolicy policy(*config_.spec.elastic);
  std::optional<uint32_t> replicas;
  if (!request.at("replicas").is_null()) {
    replicas = request.at("replicas").get<uint32_t>();
  }
  if (const std::string mistake = policy.scale_to(replicas); !mistake.empty()) {
    return absl::InvalidArgumentError(mistake);
  }
  link_->send(brain::ScaleRequested{replicas});
  const uint32_t now = world() / config_.spec.ranks_per_replica;
  return replicas ? absl::StrFormat("the job goes from %d to %d replicas, as far as its nodes can hold them", now, *replicas)
                  : absl::StrFormat("the job has %d replicas, and its policy decides again", now);
}

}  // namespace keepstep::agent
