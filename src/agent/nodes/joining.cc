#include "agent/nodes/joining.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "agent/nodes/node_facts.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

constexpr int64_t kSayAgainNs = 1'000'000'000;  // if node 0 does not answer
constexpr int64_t kPatienceNs = 5'000'000'000;  // before we show which nodes the job waits for

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address.starts_with("[::1]"); }

}  // namespace

// Sends what this node was started with until node 0's agent has accepted it: a message to an agent that is not
// connected yet is lost. Only then does the job learn of this node, so a node that does not fit never gets a rank.
void Joining::introduce() {
  const int64_t now_ns = monotonic_ns();
  if (core_.joined_job || core_.end.has_value() ||
      (introduced_at_ns_ != 0 && now_ns - introduced_at_ns_ < kSayAgainNs)) {
    return;
  }
  if (!core_.config.spec.several_nodes()) {
    say_that_all_came();
    join();
    return;
  }
  started_at_ns_ = started_at_ns_ == 0 ? now_ns : started_at_ns_;
  introduced_at_ns_ = now_ns;
  if (clocks_.asks_first()) {
    return;
  }
  core_.route(0, messages::Facts{core_.config.node_name, node_facts(core_.config.spec, core_.config.version),
                                 clocks_.report()});
}

void Joining::join() {
  if (!std::exchange(core_.joined_job, true)) {
    core_.link->send(brain::NodeJoined{core_.config.node, core_.config.endpoint});
  }
}

// Node 0: handles a node that does not fit. Before the job began, somebody made a mistake that all should learn of.
// After that, the node joined as a spare or in place of a lost one, and only that node must leave.
void Joining::refuse_or_end(brain::NodeId node, const std::string& because) {
  if (core_.brain.prepared() == nullptr || node == core_.config.node) {
    core_.stop_job(1, because);
    return;
  }
  core_.joined.erase(node);
  fingerprints_.erase(node);
  core_.journal.write("node_refused", core_.brain.identity(), because, {{"refused_node", int64_t{node}}});
  core_.pump.say("keepstep: " + because + ". The job goes on without it");
  core_.route(node, messages::DoesNotFit{because});
}

void Joining::say_that_all_came() {
  if (core_.config.all_came) {
    std::exchange(core_.config.all_came, nullptr)();
  }
}

bool Joining::clock_fits(brain::NodeId from, const messages::Facts& facts) {
  const auto apart = facts.clock.has_value() ? clocks_.why_not(from, facts.name, *facts.clock) : std::nullopt;
  if (apart) {
    refuse_or_end(from, *apart);
  }
  return !apart;
}

bool Joining::on_facts(brain::NodeId from, const messages::Facts& facts) {
  const std::string who = absl::StrFormat("node %d (%s)", from, facts.name);
  const std::vector<std::string> lines =
      differences(node_facts(core_.config.spec, core_.config.version), facts.facts, who);
  core_.joined[from] = facts.name;
  if (lines.empty()) {
    core_.journal.write("node_fits", core_.brain.identity(), {}, {{"fitting_node", int64_t{from}}});
    if (core_.joined.size() == core_.config.spec.node_limit() + core_.config.spec.spare_nodes) {
      say_that_all_came();
    }
    core_.route(from, messages::Fits{});
  } else {
    refuse_or_end(from, absl::StrFormat("%s cannot take part: %s. Start all nodes with the same options and script",
                                        who, absl::StrJoin(lines, "; ")));
  }
  return lines.empty();
}

// The job goes on without this node.
void Joining::on_refused(const std::string& because) {
  if (!core_.end.has_value()) {
    refused_ = true;
    core_.end_job({1, because + ". The job goes on without this node", ""});
  }
}

void Joining::on_clock_answer(const messages::ClockAnswer& answer) {
  if (clocks_.on_answer(answer)) {
    introduced_at_ns_ = 0;  // the clock is asked first
    introduce();
  }
}

void Joining::on_unreadable(brain::NodeId from) {
  if (core_.config.node == 0 && !core_.joined.contains(from)) {
    refuse_or_end(
        from,
        absl::StrFormat("node %d cannot take part: its protocol differs from that of node 0, which runs keepstep %s. "
                        "Install the same version on all nodes",
                        from, core_.config.version));
  }
}

// Other processors may compute different bits with the same instructions. This is reported, but is no reason to refuse
// a node.
void Joining::on_fingerprint(brain::NodeId from, const messages::Texts& theirs) {
  fingerprints_[from] = theirs;
  const auto mine = fingerprints_.find(core_.config.node);
  if (mine == fingerprints_.end()) {
    return;
  }
  const std::map<brain::NodeId, messages::Texts> all = fingerprints_;  // a refused node is removed from it
  for (const auto& [node, fingerprint] : all) {
    messages::Texts first = mine->second;
    if (from != core_.config.node && node != from) {
      continue;  // compared before
    }
    if (const auto cpu = fingerprint.find("cpu"); cpu == fingerprint.end() || cpu->second != first["cpu"]) {
      core_.pump.say(
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

std::optional<std::string> Joining::await_nodes() {
  if (core_.config.node != 0 || !core_.config.spec.several_nodes() || core_.brain.prepared() != nullptr ||
      core_.end.has_value()) {
    return std::nullopt;
  }
  std::vector<std::string> missing;
  // In an elastic job any nodes will do if there are enough.
  const bool enough = core_.config.spec.elastic && core_.joined.size() >= core_.config.spec.nnodes;
  for (brain::NodeId node = 0; node < core_.config.spec.nnodes && !enough; ++node) {
    if (!core_.joined.contains(node)) {
      missing.push_back(std::to_string(node));
    }
  }
  if (missing.empty()) {
    return await_begin();
  }
  complete_since_ns_ = 0;
  const std::string who = absl::StrFormat("node%s %s", missing.size() == 1 ? "" : "s", absl::StrJoin(missing, ", "));
  const int64_t waited_ns = monotonic_ns() - started_at_ns_;
  if (waited_ns > kPatienceNs && !said_waiting_) {
    said_waiting_ = true;
    core_.pump.say(absl::StrFormat("keepstep: node 0 listens at %s and waits for %s", core_.config.coordinator, who));
  }
  if (static_cast<double>(waited_ns) * 1e-9 > core_.config.spec.join_timeout_s) {
    core_.stop_job(
        1,
        absl::StrFormat("%s did not join at %s within %g s (--join-timeout); is keepstep started there, with %s"
                        "this --rdzv-endpoint?%s",
                        who, core_.config.coordinator, core_.config.spec.join_timeout_s,
                        core_.config.spec.any_node_rank ? "" : absl::StrFormat("--node-rank %s and ", missing.front()),
                        is_loopback(core_.config.coordinator) ? " That address is this machine's alone." : ""));
  }
  return "waiting for " + who;
}

// All nodes have joined at some time. The job begins with the first workers; until then a node that was lost again is
// missing.
std::string Joining::await_begin() {
  if (!core_.workers.empty()) {
    return "starting";
  }
  const int64_t now_ns = monotonic_ns();
  complete_since_ns_ = complete_since_ns_ == 0 ? now_ns : complete_since_ns_;
  if (now_ns - complete_since_ns_ < kPatienceNs) {
    return "starting";
  }
  if (static_cast<double>(now_ns - started_at_ns_) * 1e-9 > core_.config.spec.join_timeout_s) {
    core_.stop_job(
        1, absl::StrFormat("all nodes came to %s, but one was lost again before the job began (node_lost in the "
                           "journal) and did not come back within %g s (--join-timeout)",
                           core_.config.coordinator, core_.config.spec.join_timeout_s));
  }
  return "waiting for a node that was lost again";
}

}  // namespace keepstep::agent
