// The agent's third part: what the agents of several nodes say to one another, through the coordinator.
//
// A message is one letter for its subject, then JSON: S the store (shared_store.h), F what a node was started with
// (node_facts.h), P the fingerprint of a node's workers, A that the job's programs attach (--no-python). Node 0
// compares and speaks for the job.

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "agent/agent.h"
#include "agent/node_facts.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {

using worker::MessageType;

namespace {

constexpr int64_t kPatienceNs = 5'000'000'000;  // before somebody who looks is told for whom the job waits

}  // namespace

void Agent::introduce() {
  if (config_.spec.several_nodes()) {
    started_at_ns_ = monotonic_ns();
    nlohmann::json message = {{"name", config_.node_name}, {"facts", node_facts(config_.spec, config_.version)}};
    route(0, 'F', message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

void Agent::route(brain::NodeId to, char subject, const std::string& body) {
  if (const Status status = link_->route(to, subject + body); !status.ok()) {
    spdlog::warn("node {}: {}", to, std::string(status.message()));
  }
}

void Agent::on_routed(brain::NodeId from, const std::string& message) {
  Status bad;
  if (message.starts_with('S')) {
    auto outcome = store_.on_message(from, message.substr(1));
    bad = outcome.status();
    if (outcome.ok()) {
      carry_out(*outcome);
    }
  } else {
    try {
      const nlohmann::json body = nlohmann::json::parse(message.empty() ? message : message.substr(1));
      if (message.starts_with('F') && config_.node == 0) {
        on_facts(from, body.at("name"), body.at("facts"));
      } else if (message.starts_with('P') && config_.node == 0) {
        on_fingerprint(from, body);
        if (config_.spec.no_python) {
          on_programs_attach();
        }
      } else if (message.starts_with('A') && from == 0 && config_.spec.no_python) {
        on_programs_attach();
      } else {
        bad = absl::InvalidArgumentError("of an unknown subject");
      }
    } catch (const nlohmann::json::exception& error) {
      bad = absl::InvalidArgumentError(error.what());
    }
  }
  if (!bad.ok()) {
    journal_.write("refused", {}, absl::StrFormat("a message of node %d: %s", from, bad.message()),
                   {{"count", ++refused_}});
  }
}

void Agent::carry_out(const SharedStore::Outcome& outcome) {
  const brain::Identity identity = generation_ == nullptr ? brain::Identity{} : generation_->identity();
  for (const StoreAnswer& answer : outcome.answers) {
    if (const auto it = workers_.find(answer.worker); it != workers_.end()) {
      tell(*it->second, MessageType::kStoreReply, identity,
           {{"id", answer.id}, {"ok", answer.ok}, {"value", absl::BytesToHexString(answer.value)}});
    }
  }
  for (const auto& [node, message] : outcome.messages) {
    route(node, 'S', message);
  }
}

void Agent::on_facts(brain::NodeId from, const std::string& name, const nlohmann::json& facts) {
  joined_[from] = name;
  tell_that_programs_attach(from);
  const std::vector<std::string> lines =
      differences(node_facts(config_.spec, config_.version), facts, absl::StrFormat("node %d (%s)", from, name));
  if (!lines.empty()) {
    link_->send(brain::StopRequested{
        1, absl::StrFormat("node %d (%s) cannot take part: %s. Start all nodes with the same options and script", from,
                           name, absl::StrJoin(lines, "; "))});
  }
}

// By node 0.
void Agent::tell_that_programs_attach(brain::NodeId to) {
  if (programs_attach_ && to != config_.node) {
    route(to, 'A', "{}");
  }
}

// Other processors may compute other bits with the same instructions; that is said, and no reason to refuse a node.
void Agent::on_fingerprint(brain::NodeId from, const nlohmann::json& theirs) {
  fingerprints_[from] = theirs;
  const auto mine = fingerprints_.find(config_.node);
  if (mine == fingerprints_.end()) {
    return;
  }
  for (const auto& [node, fingerprint] : fingerprints_) {
    nlohmann::json first = mine->second;
    if (from != config_.node && node != from) {
      continue;  // compared before
    }
    if (fingerprint.value("cpu", "") != first.value("cpu", "")) {
      pump_.say(
          absl::StrFormat("keepstep: node %d has another processor than node 0: the same step may give other "
                          "bits there",
                          node));
    }
    first.erase("cpu");
    const std::vector<std::string> lines = differences(first, fingerprint, absl::StrFormat("node %d", node));
    if (!lines.empty()) {
      link_->send(brain::StopRequested{1, absl::StrFormat("node %d would not compute the same bits as node 0: %s", node,
                                                          absl::StrJoin(lines, "; "))});
    }
  }
}

// Node 0, while the job has not begun.
void Agent::await_nodes() {
  if (config_.node != 0 || !config_.spec.several_nodes() || generation_ != nullptr || end_.has_value()) {
    return;
  }
  std::vector<std::string> missing;
  for (brain::NodeId node = 0; node < config_.spec.nnodes; ++node) {
    if (!joined_.contains(node)) {
      missing.push_back(std::to_string(node));
    }
  }
  if (missing.empty()) {
    await_begin();
    return;
  }
  complete_since_ns_ = 0;
  const std::string who = absl::StrFormat("node%s %s", missing.size() == 1 ? "" : "s", absl::StrJoin(missing, ", "));
  const int64_t waited_ns = monotonic_ns() - started_at_ns_;
  note_ = "waiting for " + who;
  if (waited_ns > kPatienceNs && !said_waiting_) {
    said_waiting_ = true;
    pump_.say(absl::StrFormat("keepstep: node 0 listens at %s and waits for %s", config_.coordinator, who));
  }
  if (static_cast<double>(waited_ns) * 1e-9 > config_.spec.join_timeout_s) {
    link_->send(brain::StopRequested{
        1, absl::StrFormat("%s did not come to %s within %g s (--join-timeout); is keepstep started there, with "
                           "--node-rank %s and this --rdzv-endpoint?",
                           who, config_.coordinator, config_.spec.join_timeout_s, missing.front())});
  }
}

// All nodes have come once. The job begins with the first workers; until then one that was lost again is missed.
void Agent::await_begin() {
  note_ = "starting";
  if (!workers_.empty()) {
    return;
  }
  const int64_t now_ns = monotonic_ns();
  complete_since_ns_ = complete_since_ns_ == 0 ? now_ns : complete_since_ns_;
  if (now_ns - complete_since_ns_ < kPatienceNs) {
    return;
  }
  note_ = "waiting for a node that was lost again";
  if (static_cast<double>(now_ns - started_at_ns_) * 1e-9 > config_.spec.join_timeout_s) {
    link_->send(brain::StopRequested{
        1, absl::StrFormat("all nodes came to %s, but one was lost again before the job began (node_lost in the "
                           "journal) and did not come back within %g s (--join-timeout)",
                           config_.coordinator, config_.spec.join_timeout_s)});
  }
}

}  // namespace keepstep::agent
