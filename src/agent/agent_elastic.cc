// The agent's part for elastic jobs: its ranks pause when the world is to change, and a node that was told to leave
// hands its ranks' work over and ends, while the job goes on.

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "agent/agent.h"
#include "agent/rings/ring_service.h"
#include "base/clock.h"

namespace keepstep::agent {

using worker::MessageType;

// Ranks of the running generation; before there is one, those that the job starts with at least.
uint32_t Agent::world() const {
  return brain_.prepared() == nullptr ? config_.spec.world_size() : brain_.prepared()->table.world_size();
}

// Who had a rank and waits as a spare reads no batches, and must not keep the loader from making room for more.
void Agent::let_leavers_out() {
  if (rings_ == nullptr || !config_.spec.elastic) {
    return;
  }
  const std::vector<std::shared_ptr<WorkerProcess>> members = living_members();
  for (const auto& [id, process] : workers_) {
    if (!is_dead(*process) && process->pid != 0 &&
        std::find(members.begin(), members.end(), process) == members.end()) {
      rings_->let_out(process->pid);
    }
  }
}

// What had ranks here goes on elsewhere, or is not needed any more.
void Agent::part(const brain::Part& effect) {
  pump_.say(
      absl::StrFormat("keepstep: node %d has left, and the job goes on without it: %s", config_.node, effect.because));
  leave_by_ns_ = 0;
  carry_out(brain::EndJob{0, "", ""});
}

// SIGTERM, or a notice: the node leaves. A second SIGTERM ends it at once, and the job goes on as without a lost node.
// On node 0, whose launcher holds the coordinator: as in any job. So it is under Slurm, which tells all nodes at once.
bool Agent::leave_on(int signal) {
  const bool told = signal == SIGTERM || signal == SIGUSR1;
  if (!told || !config_.spec.elastic || !config_.spec.slurm_job.empty() || config_.node == 0 || end_.has_value()) {
    return false;
  }
  if (!joined_job_) {
    carry_out(brain::EndJob{
        0, absl::StrFormat("node %d was told to leave before it had joined; the job goes on without it", config_.node),
        ""});
    return true;
  }
  const bool again = signal == SIGTERM && std::exchange(leave_at_once_, true);
  if (leave_by_ns_ != 0) {
    if (again) {
      kill_at_ns_ = monotonic_ns();
      end_unparted("was told to leave and ends now, at a second SIGTERM");
    }
    return true;
  }
  leave_by_ns_ = monotonic_ns() + grace_.count();
  const std::string because =
      absl::StrFormat("SIG%s came to node %d (%s)", sigabbrev_np(signal), config_.node, config_.node_name);
  pump_.say(absl::StrFormat("keepstep: %s: it leaves within %g s, and the job goes on", because,
                            std::chrono::duration<double>(grace_).count()));
  journal_.write("notice", brain_.identity(), because, {{"signal", int64_t{signal}}});
  link_->send(brain::NodeLeaves{config_.node, because});
  return true;
}

// Whoever told us to leave will not wait: then this node goes like one that is lost.
void Agent::leave_in_time() {
  if (leave_by_ns_ == 0 || end_.has_value() || monotonic_ns() < leave_by_ns_) {
    return;
  }
  end_unparted("was told to leave and ends now, at the end of its time (--graceful-shutdown-timeout)");
}

void Agent::end_unparted(const char* what) {
  leave_by_ns_ = 0;
  gives_up_ = true;
  carry_out(
      brain::EndJob{1, absl::StrFormat("node %d %s: its ranks could not be given up before", config_.node, what), ""});
}

// ---- `keepstep scale` ---------------------------------------------------------------------------------------------

// Of the running generation.
uint32_t Agent::replicas() const { return brain_.prepared() == nullptr ? 0 : world() / config_.spec.ranks_per_replica; }

Status Agent::decides_on_size() const {
  if (!policy_) {
    return absl::FailedPreconditionError(
        "the job is not elastic, so its size cannot be changed; start it with --nnodes MIN:MAX, or with "
        "--min-replicas");
  }
  if (config_.node != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this is the launcher of node %d, and node 0 decides on the job's size: ask on its machine (%s)", config_.node,
        config_.coordinator));
  }
  return end_.has_value() ? absl::FailedPreconditionError("the job is ending") : absl::OkStatus();
}

// As the control door hands it on: {"replicas": N or null}, or {"policy": {name: text}}.
StatusOr<std::string> Agent::scale(const nlohmann::json& request) {
  KEEPSTEP_RETURN_IF_ERROR(decides_on_size());
  if (request.contains("policy")) {
    return change_policy(request.at("policy").get<PolicyValues>());
  }
  const nlohmann::json& replicas = request.at("replicas");
  if (replicas.is_null()) {
    return scale_to(std::nullopt);
  }
  if (!replicas.is_number_unsigned() || replicas.get<uint64_t>() > brain::ElasticConfig::kMostReplicas) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is no number of replicas; ask for 1 to %d", replicas.dump(),
                                                      brain::ElasticConfig::kMostReplicas));
  }
  return scale_to(replicas.get<uint32_t>());
}

StatusOr<std::string> Agent::scale_to(std::optional<uint32_t> replicas) {
  if (const std::string mistake = policy_->scale_to(replicas); !mistake.empty()) {
    return absl::InvalidArgumentError(mistake);
  }
  link_->send(brain::ScaleRequested{replicas});
  if (!replicas) {
    return absl::StrFormat("the job has %d replicas, and its policy decides again", this->replicas());
  }
  if (brain_.prepared() == nullptr) {
    return absl::StrFormat(
        "the job has not begun; it gets %d replicas as soon as its nodes hold them, and keeps that "
        "size until `keepstep scale --to auto`",
        *replicas);
  }
  return absl::StrFormat(
      "the job goes from %d to %d replicas, as far as its nodes hold them, and keeps that size until "
      "`keepstep scale --to auto`",
      this->replicas(), *replicas);
}

StatusOr<std::string> Agent::change_policy(const PolicyValues& values) {
  std::vector<std::string> mistakes = policy_value_mistakes(values);
  brain::ElasticConfig config = policy_->config();
  if (mistakes.empty()) {
    apply_policy_values(values, config);
    mistakes = policy_mistakes(config_.spec, config);
  }
  if (mistakes.empty()) {
    mistakes = policy_->configure(config);
  }
  if (!mistakes.empty()) {
    return absl::InvalidArgumentError("nothing was changed: " + absl::StrJoin(mistakes, "; "));
  }
  link_->send(brain::PolicyChanged{policy_->config()});
  grace_ = policy_->config().graceful_shutdown_timeout;
  for (const auto& [node, name] : joined_) {
    tell_grace(node);
  }
  const PolicyValues now = policy_values(policy_->config());
  std::string text = "the policy of the job is now:";
  for (const PolicyName& known : policy_names()) {
    if (const auto value = now.find(known.name); value != now.end()) {
      text += absl::StrFormat("%s %s %s", text.ends_with(':') ? "" : ",", value->first, value->second);
    }
  }
  return text;
}

// By node 0: the other nodes count their time to leave by themselves, and may have been started with another.
void Agent::tell_grace(brain::NodeId to) {
  if (policy_ && to != config_.node) {
    route(to, 'E', nlohmann::json{{"grace_ns", grace_.count()}}.dump());
  }
}

void Agent::on_grace(const nlohmann::json& body) {
  const int64_t grace_ns = body.at("grace_ns").get<int64_t>();
  const brain::Time grace(std::clamp<int64_t>(grace_ns, 0, brain::ElasticConfig::kMostTime.count()));
  if (std::exchange(grace_, grace) == grace) {
    return;
  }
  journal_.write("policy_changed", {}, "node 0 says so",
                 {{"graceful_shutdown_s", std::chrono::duration<double>(grace_).count()}});
}

StatusOr<nlohmann::json> Agent::describe_size() const {
  KEEPSTEP_RETURN_IF_ERROR(decides_on_size());
  std::map<brain::NodeId, uint32_t> ranks;
  if (brain_.prepared() != nullptr) {
    for (const brain::RankTable::Entry& entry : brain_.prepared()->table.entries()) {
      ranks[entry.node] += entry.ranks;
    }
  }
  const SizeNews news = config_.size_news ? config_.size_news() : SizeNews{};
  nlohmann::json nodes = nlohmann::json::array();
  for (const brain::NodeId node : news.nodes) {
    const auto name = joined_.find(node);
    const auto has = ranks.find(node);
    nodes.push_back({{"node", node},
                     {"name", name == joined_.end() ? config_.node_name : name->second},
                     {"ranks", has == ranks.end() ? 0 : has->second}});
  }
  nlohmann::json sizes = nlohmann::json::array();
  const brain::ElasticConfig& config = policy_->config();
  for (uint32_t size = policy_->smallest_allowed(1); size != 0; size = policy_->smallest_allowed(size + 1)) {
    sizes.push_back(size);
  }
  return nlohmann::json{
      {"ok", true},
      {"job", job_},
      {"step", metrics_.last_step()},
      {"replicas", replicas()},
      {"ranks", world()},
      {"ranks_per_replica", config_.spec.ranks_per_replica},
      {"min", config.min_replicas},
      {"max", config.max_replicas},
      {"sizes", sizes},
      {"asked_for", policy_->asked_for() ? nlohmann::json(*policy_->asked_for()) : nlohmann::json()},
      {"nodes", nodes},
      {"most_nodes", config_.spec.max_nodes},
      {"policy", policy_values(config)},
      {"last", {{"event", news.event}, {"because", news.because}, {"seconds_ago", news.seconds_ago}}}};
}

}  // namespace keepstep::agent
