// The agent's third part: what the agents of several nodes say to one another, through the coordinator.
//
// A message is one letter for its subject, then JSON: S the store (shared_store.h), F what a node was started with
// (node_facts.h), M a part of a longer message (message_parts.h), P the fingerprint of a node's workers, H ranks that
// wait for other nodes (hang_watch.h), W how long ranks compute (brain/detect/stragglers.h), T what time it is
// (clock_probe.h), Q that the job has to stop soon (agent_notice.cc), N that the job's programs attach (--no-python),
// E how long a node that is told to leave has for it (agent_elastic.cc), V what is in its agent's memory
// (agent_memory.cc), D what processes that write checkpoints tell each other (drain_process.h), any text of theirs; A
// and X are node 0's answers, fits and does not fit. Node 0 compares and speaks for the job.

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "agent/agent.h"
#include "agent/nodes/node_facts.h"
#include "agent/workers/drain_process.h"
#include "base/clock.h"
#include "base/log.h"
#include "rank/link/store_messages.h"

namespace keepstep::agent {

using worker::MessageType;

namespace {

constexpr int64_t kSayAgainNs = 1'000'000'000;  // what node 0 did not answer
constexpr std::chrono::seconds kOneTry{10};     // to attend; a signal is looked for between two
constexpr int kTryAgainMs = 1000;               // where the place is taken, or there was no answer
constexpr int64_t kPatienceNs = 5'000'000'000;  // before somebody who looks is told for whom the job waits

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address.starts_with("[::1]"); }

}  // namespace

// A node that was lost without a word keeps its place until the coordinator has asked it in vain, so a launcher that
// comes again within these seconds is refused, and tries again. In the end a refusal is one: two launchers have the
// same node rank. A coordinator that does not answer may be paused, or busy with a flood of strangers.
StatusOr<std::unique_ptr<CoordinatorLink>> Agent::attend() {
  const int64_t end_ns = monotonic_ns() + static_cast<int64_t>(config_.spec.join_timeout_s * 1e9);
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls,
                            net::TlsContext::create(net::SharedKey::control(config_.token, config_.spec.run_id)));
  bool said = false;
  while (true) {
    StatusOr<std::unique_ptr<CoordinatorLink>> link = CoordinatorLink::connect(
        config_.coordinator, config_.node, config_.node_name, tls,
        [this](brain::Effect effect) { loop_->post([this, effect = std::move(effect)] { carry_out(effect); }); },
        [this](std::string why) {
          loop_->post([this, why = std::move(why)] {
            carry_out(
                brain::EndJob{1,
                              absl::StrFormat("the coordinator%s is gone, and in this version the job ends with it: %s",
                                              config_.node == 0 ? "" : " (node 0)", why),
                              ""});
          });
        },
        kOneTry,
        [this](brain::NodeId from, std::string message) {
          loop_->post([this, from, message = std::move(message)] { on_routed(from, message); });
        });
    const bool taken = absl::IsAlreadyExists(link.status());
    if (!taken && !absl::IsDeadlineExceeded(link.status())) {
      return link;
    }
    if (monotonic_ns() >= end_ns) {
      return !taken ? std::move(link)
                    : absl::AlreadyExistsError(absl::StrFormat(
                          "%s; it stayed connected for %g s (--join-timeout): give each launcher another --node-rank",
                          link.status().message(), config_.spec.join_timeout_s));
    }
    if (!std::exchange(said, true)) {
      pump_.say(absl::StrFormat("keepstep: %s This node tries again for up to %g s (--join-timeout)%s",
                                link.status().message(), config_.spec.join_timeout_s,
                                taken ? ": if the other one was just lost, its place is free in about 15 s" : ""));
    }
    pollfd stop{signal_fd_.get(), POLLIN, 0};
    if (poll(&stop, 1, kTryAgainMs) > 0) {
      signalfd_siginfo info{};
      (void)!read(signal_fd_.get(), &info, sizeof info);
      signals_ = 1;
      const int number = static_cast<int>(info.ssi_signo);
      end_ = JobEnd{is_notice(config_.spec, number) ? kNoticeExitCode : 128 + number,
                    absl::StrFormat("stopped by %s", strsignal(number)), "", is_notice(config_.spec, number)};
      return absl::CancelledError(end_->message);
    }
  }
}

// Says what this node was started with, until node 0's agent has said that it fits: a message to an agent that does not
// attend yet is lost. Only then does the job know of this node, so a node that does not fit never gets a rank.
void Agent::introduce() {
  const int64_t now_ns = monotonic_ns();
  if (joined_job_ || end_.has_value() || (introduced_at_ns_ != 0 && now_ns - introduced_at_ns_ < kSayAgainNs)) {
    return;
  }
  if (!config_.spec.several_nodes()) {
    say_that_all_came();
    join();
    return;
  }
  started_at_ns_ = started_at_ns_ == 0 ? now_ns : started_at_ns_;
  introduced_at_ns_ = now_ns;
  if (asks_for_clock_first()) {
    return;
  }
  nlohmann::json message = {
      {"name", config_.node_name}, {"facts", node_facts(config_.spec, config_.version)}, {"clock", clock_report()}};
  route(0, 'F', message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Agent::join() {
  if (!std::exchange(joined_job_, true)) {
    link_->send(brain::NodeJoined{config_.node, config_.endpoint});
  }
}

// The job goes on, without this node.
void Agent::on_refused(const std::string& because) {
  if (!end_.has_value()) {
    refused_by_0_ = true;
    carry_out(brain::EndJob{1, because + ". The job goes on without this node", ""});
  }
}

// Node 0: a node that does not fit. Before the job began somebody made a mistake that all should hear of; afterwards it
// is one that came as a spare, or in the place of a lost one, and only it has to go.
void Agent::refuse_or_end(brain::NodeId node, const std::string& because) {
  if (brain_.prepared() == nullptr || node == config_.node) {
    link_->send(brain::StopRequested{1, because});
    return;
  }
  joined_.erase(node);
  fingerprints_.erase(node);
  journal_.write("node_refused", brain_.identity(), because, {{"refused_node", int64_t{node}}});
  pump_.say("keepstep: " + because + ". The job goes on without it");
  route(node, 'X', nlohmann::json{{"because", because}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Agent::route(brain::NodeId to, char subject, const std::string& body) {
  const StatusOr<std::vector<std::string>> parts = in_parts(subject + body);
  Status status = parts.status();
  for (size_t i = 0; status.ok() && i < parts->size(); ++i) {
    status = link_->route(to, (*parts)[i]);
  }
  if (!status.ok()) {
    spdlog::warn("node {}: {}", to, std::string(status.message()));
  }
}

void Agent::on_routed(brain::NodeId from, const std::string& message) {
  Status bad;
  if (message.starts_with('M')) {
    const auto whole = parts_.add(from, message);
    bad = whole.status();
    if (whole.ok() && whole->has_value()) {
      return on_routed(from, **whole);
    }
  } else if (message.starts_with('S')) {
    auto outcome = store_.on_message(from, message.substr(1));
    bad = outcome.status();
    if (outcome.ok()) {
      carry_out(*outcome);
    }
  } else if (message.starts_with('D')) {
    if (drain_ != nullptr) {
      drain_->hand(from, message.substr(1));
    }
  } else {
    try {
      const nlohmann::json body = nlohmann::json::parse(message.empty() ? message : message.substr(1));
      if (message.starts_with('F') && config_.node == 0) {
        if (on_clock(from, body.at("name"), body.value("clock", nlohmann::json()), true)) {
          on_facts(from, body.at("name"), body.at("facts"));
        }
      } else if (message.starts_with('P') && config_.node == 0) {
        on_fingerprint(from, body);
        if (config_.spec.no_python) {
          on_programs_attach();
        }
      } else if (message.starts_with('A') && from == 0) {
        join();
      } else if (message.starts_with('X') && from == 0) {
        on_refused(body.at("because"));
      } else if (message.starts_with('H')) {
        bad = hang_watch_.on_report(from, body, monotonic_ns());
      } else if (message.starts_with('T')) {
        on_clock_message(from, body);
      } else if (message.starts_with('W') && config_.node == 0) {
        bad = on_pace_report(from, body);
      } else if (message.starts_with('Q')) {
        take_notice(body.at("because"));
      } else if (message.starts_with('V')) {
        on_memory_message(from, body);
      } else if (message.starts_with('E') && from == 0) {
        on_grace(body);
      } else if (message.starts_with('N') && from == 0 && config_.spec.no_python) {
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
  const brain::Identity identity = brain_.identity();
  for (const StoreAnswer& answer : outcome.answers) {
    if (const auto it = workers_.find(answer.worker); it != workers_.end()) {
      const worker::StoreMessage reply = worker::store_answer(answer.id, answer.ok, answer.value);
      tell(*it->second, MessageType::kStoreReply, identity, reply.body, reply.fds());
    }
  }
  for (const auto& [node, message] : outcome.messages) {
    route(node, 'S', message);
  }
}

void Agent::say_that_all_came() {
  if (config_.all_came) {
    std::exchange(config_.all_came, nullptr)();
  }
}

void Agent::on_facts(brain::NodeId from, const std::string& name, const nlohmann::json& facts) {
  tell_that_programs_attach(from);
  const std::vector<std::string> lines =
      differences(node_facts(config_.spec, config_.version), facts, absl::StrFormat("node %d (%s)", from, name));
  joined_[from] = name;
  if (lines.empty()) {
    if (joined_.size() == config_.spec.most_nodes() + config_.spec.spare_nodes) {
      say_that_all_came();
    }
    route(from, 'A', "{}");
    tell_grace(from);
  } else {
    refuse_or_end(from, absl::StrFormat("node %d (%s) cannot take part: %s. Start all nodes with the same options and "
                                        "script",
                                        from, name, absl::StrJoin(lines, "; ")));
  }
}

// By node 0.
void Agent::tell_that_programs_attach(brain::NodeId to) {
  if (programs_attach_ && to != config_.node) {
    route(to, 'N', "{}");
  }
}

// Other processors may compute other bits with the same instructions; that is said, and no reason to refuse a node.
void Agent::on_fingerprint(brain::NodeId from, const nlohmann::json& theirs) {
  fingerprints_[from] = theirs;
  const auto mine = fingerprints_.find(config_.node);
  if (mine == fingerprints_.end()) {
    return;
  }
  const std::map<brain::NodeId, nlohmann::json> all = fingerprints_;  // who is refused is taken out
  for (const auto& [node, fingerprint] : all) {
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
      refuse_or_end(node, absl::StrFormat("node %d would not compute the same bits as node 0: %s", node,
                                          absl::StrJoin(lines, "; ")));
    }
  }
}

// Node 0, while the job has not begun.
void Agent::await_nodes() {
  if (config_.node != 0 || !config_.spec.several_nodes() || brain_.prepared() != nullptr || end_.has_value()) {
    return;
  }
  std::vector<std::string> missing;
  // Of an elastic job any will do, as long as they are enough.
  const bool enough = config_.spec.elastic && joined_.size() >= config_.spec.nnodes;
  for (brain::NodeId node = 0; node < config_.spec.nnodes && !enough; ++node) {
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
        1, absl::StrFormat("%s did not come to %s within %g s (--join-timeout); is keepstep started there, with %s"
                           "this --rdzv-endpoint?%s",
                           who, config_.coordinator, config_.spec.join_timeout_s,
                           config_.spec.any_node_rank ? "" : absl::StrFormat("--node-rank %s and ", missing.front()),
                           is_loopback(config_.coordinator) ? " That address is this machine's alone." : "")});
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
