#include "agent/parts/elastic_size.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace keepstep::agent {

ElasticSize::ElasticSize(AgentCore& core) : core_(core) {
  if (core_.config.spec.elastic) {
    grace_ = core_.config.spec.elastic->graceful_shutdown_timeout;
    policy_.emplace(*core_.config.spec.elastic);
  }
}

// SIGTERM or a notice: the node leaves. A second SIGTERM ends it at once, and the job goes on as if it had lost the
// node. On node 0, whose launcher holds the coordinator, signals mean the same as in any job; also under Slurm, which
// signals all nodes at once.
bool ElasticSize::leave_on(int signal) {
  const bool told = signal == SIGTERM || signal == SIGUSR1;
  if (!told || !core_.config.spec.elastic || !core_.config.spec.slurm_job.empty() || core_.config.node == 0 ||
      core_.end.has_value()) {
    return false;
  }
  if (!core_.joined_job) {
    core_.end_job({0,
                   absl::StrFormat("node %d was told to leave before it had joined; the job goes on without it",
                                   core_.config.node),
                   ""});
    return true;
  }
  const bool again = signal == SIGTERM && std::exchange(leave_at_once_, true);
  if (leave_by_ns_ != 0) {
    if (again) {
      core_.kill_at_ns = monotonic_ns();
      end_unparted("was told to leave and ends now, at a second SIGTERM");
    }
    return true;
  }
  leave_by_ns_ = monotonic_ns() + grace_.count();
  const std::string because =
      absl::StrFormat("SIG%s came to node %d (%s)", sigabbrev_np(signal), core_.config.node, core_.config.node_name);
  core_.pump.say(absl::StrFormat("keepstep: %s: it leaves within %g s, and the job goes on", because,
                                 std::chrono::duration<double>(grace_).count()));
  core_.journal.write("notice", core_.brain.identity(), because, {{"signal", int64_t{signal}}});
  core_.link->send(brain::NodeLeaves{core_.config.node, because});
  return true;
}

// Whoever told us to leave will not wait, so this node ends as if it were lost.
void ElasticSize::leave_in_time() {
  if (leave_by_ns_ == 0 || core_.end.has_value() || monotonic_ns() < leave_by_ns_) {
    return;
  }
  end_unparted("was told to leave and ends now, at the end of its time (--graceful-shutdown-timeout)");
}

void ElasticSize::end_unparted(const char* what) {
  leave_by_ns_ = 0;
  core_.gives_up = true;
  core_.end_job(
      {1, absl::StrFormat("node %d %s: its ranks could not be handed over in time", core_.config.node, what), ""});
}

// ---- `keepstep scale` ---------------------------------------------------------------------------------------------

uint32_t ElasticSize::replicas() const {
  return core_.brain.prepared() == nullptr ? 0 : core_.world() / core_.config.spec.ranks_per_replica;
}

Status ElasticSize::decides() const {
  if (!policy_) {
    return absl::FailedPreconditionError(
        "the job is not elastic, so its size cannot be changed; start it with --nnodes MIN:MAX, or with "
        "--min-replicas");
  }
  if (core_.config.node != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "this is the launcher of node %d, and node 0 decides on the job's size: ask on its machine (%s)",
        core_.config.node, core_.config.coordinator));
  }
  return core_.end.has_value() ? absl::FailedPreconditionError("the job is ending") : absl::OkStatus();
}

StatusOr<std::string> ElasticSize::scale(const nlohmann::json& request) {
  KEEPSTEP_RETURN_IF_ERROR(decides());
  if (request.contains("policy")) {
    return change_policy(request.at("policy").get<PolicyValues>());
  }
  const nlohmann::json& replicas = request.at("replicas");
  if (replicas.is_null()) {
    return scale_to(std::nullopt);
  }
  if (!replicas.is_number_unsigned() || replicas.get<uint64_t>() > brain::ElasticConfig::kMaxReplicas) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is no number of replicas; ask for 1 to %d", replicas.dump(),
                                                      brain::ElasticConfig::kMaxReplicas));
  }
  return scale_to(replicas.get<uint32_t>());
}

StatusOr<std::string> ElasticSize::scale_to(std::optional<uint32_t> replicas) {
  if (const std::string mistake = policy_->scale_to(replicas); !mistake.empty()) {
    return absl::InvalidArgumentError(mistake);
  }
  core_.link->send(brain::ScaleRequested{replicas});
  if (!replicas) {
    return absl::StrFormat("the job has %d replicas, and its policy decides again", this->replicas());
  }
  if (core_.brain.prepared() == nullptr) {
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

StatusOr<std::string> ElasticSize::change_policy(const PolicyValues& values) {
  std::vector<std::string> mistakes = policy_value_mistakes(values);
  brain::ElasticConfig config = policy_->config();
  if (mistakes.empty()) {
    apply_policy_values(values, config);
    mistakes = policy_mistakes(core_.config.spec, config);
  }
  if (mistakes.empty()) {
    mistakes = policy_->configure(config);
  }
  if (!mistakes.empty()) {
    return absl::InvalidArgumentError("nothing was changed: " + absl::StrJoin(mistakes, "; "));
  }
  core_.link->send(brain::PolicyChanged{policy_->config()});
  grace_ = policy_->config().graceful_shutdown_timeout;
  for (const auto& [node, name] : core_.joined) {
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

void ElasticSize::tell_grace(brain::NodeId to) {
  if (policy_ && to != core_.config.node) {
    core_.route(to, messages::Grace{grace_});
  }
}

void ElasticSize::on_grace(brain::Time said) {
  const brain::Time grace = std::clamp<brain::Time>(said, {}, brain::ElasticConfig::kMaxTime);
  if (std::exchange(grace_, grace) == grace) {
    return;
  }
  core_.journal.write("policy_changed", {}, "node 0 says so",
                      {{"graceful_shutdown_s", std::chrono::duration<double>(grace_).count()}});
}

// Only node 0 knows what the policy allows now.
nlohmann::json ElasticSize::in_short() const {
  if (!policy_ || core_.config.node != 0) {
    return {};
  }
  return {{"replicas", replicas()}, {"min", policy_->config().min_replicas}, {"max", policy_->config().max_replicas}};
}

StatusOr<nlohmann::json> ElasticSize::describe() const {
  KEEPSTEP_RETURN_IF_ERROR(decides());
  std::map<brain::NodeId, uint32_t> ranks;
  if (core_.brain.prepared() != nullptr) {
    for (const brain::RankTable::Entry& entry : core_.brain.prepared()->table.entries()) {
      ranks[entry.node] += entry.ranks;
    }
  }
  const SizeNews news = core_.config.size_news ? core_.config.size_news() : SizeNews{};
  nlohmann::json nodes = nlohmann::json::array();
  for (const brain::NodeId node : news.nodes) {
    const auto has = ranks.find(node);
    nodes.push_back({{"node", node}, {"name", core_.name_of(node)}, {"ranks", has == ranks.end() ? 0 : has->second}});
  }
  nlohmann::json sizes = nlohmann::json::array();
  const brain::ElasticConfig& config = policy_->config();
  for (uint32_t size = policy_->smallest_allowed(1); size != 0; size = policy_->smallest_allowed(size + 1)) {
    sizes.push_back(size);
  }
  return nlohmann::json{
      {"ok", true},
      {"job", core_.job},
      {"step", core_.metrics.last_step()},
      {"replicas", replicas()},
      {"ranks", core_.world()},
      {"ranks_per_replica", core_.config.spec.ranks_per_replica},
      {"min", config.min_replicas},
      {"max", config.max_replicas},
      {"sizes", sizes},
      {"asked_for", policy_->asked_for() ? nlohmann::json(*policy_->asked_for()) : nlohmann::json()},
      {"nodes", nodes},
      {"max_nodes", core_.config.spec.max_nodes},
      {"policy", policy_values(config)},
      {"last", {{"event", news.event}, {"because", news.because}, {"seconds_ago", news.seconds_ago}}}};
}

}  // namespace keepstep::agent
