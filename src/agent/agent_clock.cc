// The wall clocks of several nodes (clock_probe.h): each agent asks node 0's, before its node takes part and then now
// and then; node 0's says which ones are apart. Training does not need them: people who read logs of several nodes do,
// and tokens, leases and certificates that expire.

#include <cmath>

#include "absl/strings/str_format.h"
#include "agent/agent.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

constexpr int kMostUnanswered = 3;  // then a node comes without: node 0's agent may not know the question

int64_t wall_ns() { return static_cast<int64_t>(wall_seconds() * 1e9); }
double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

bool Agent::compares_clocks() const {
  return config_.spec.several_nodes() && config_.node != 0 && config_.spec.clock_limit_s > 0;
}

bool Agent::asks_for_clock_first() {
  const bool gives_up = clock_.unanswered() >= kMostUnanswered && !config_.spec.refuse_clocks_apart;
  if (!compares_clocks() || clock_.result().has_value() || gives_up) {
    return false;
  }
  ask_clock();
  return true;
}

void Agent::ask_clock() {
  const uint64_t number = clock_.ask(wall_ns(), monotonic_ns());
  route(0, 'T', nlohmann::json{{"ask", number}}.dump());
}

nlohmann::json Agent::clock_report() const {
  const std::optional<ClockOffset> found = clock_.result();
  return found.has_value() ? nlohmann::json{{"offset_ns", found->offset_ns}, {"round_trip_ns", found->round_trip_ns}}
                           : nlohmann::json();
}

void Agent::watch_clock() {
  const auto every_ns = static_cast<int64_t>(config_.spec.health_interval_s * 1e9);
  if (compares_clocks() && joined_job_ && !end_.has_value() && monotonic_ns() - clock_asked_ns_ > every_ns) {
    clock_asked_ns_ = monotonic_ns();
    clock_.begin();
    ask_clock();
  }
}

void Agent::on_clock_message(brain::NodeId from, const nlohmann::json& body) {
  if (config_.node == 0 && body.contains("ask")) {
    route(from, 'T', nlohmann::json{{"answer", body.at("ask").get<uint64_t>()}, {"wall_ns", wall_ns()}}.dump());
  } else if (config_.node == 0) {
    const auto named = joined_.find(from);
    on_clock(from, named == joined_.end() ? "?" : named->second, body, false);
  } else if (from == 0 && clock_.answered(body.at("answer"), body.at("wall_ns"), monotonic_ns())) {
    if (!clock_.result().has_value()) {
      ask_clock();
      return;
    }
    clock_asked_ns_ = monotonic_ns();
    if (joined_job_) {
      route(0, 'T', clock_report().dump());
    } else {
      introduced_at_ns_ = 0;  // that was asked first
      introduce();
    }
  }
}

// Node 0. False: the clocks are apart, and the node, which comes just now, was refused for it.
bool Agent::on_clock(brain::NodeId from, const std::string& host, const nlohmann::json& report, bool comes) {
  if (!report.is_object() || config_.spec.clock_limit_s <= 0) {
    return true;
  }
  const ClockOffset found{report.at("offset_ns"), report.at("round_trip_ns")};
  const bool apart = found.beyond(static_cast<int64_t>(config_.spec.clock_limit_s * 1e9));
  const double apart_s = std::abs(seconds_of(found.offset_ns));
  const std::string who = absl::StrFormat("node %d (%s)", from, host);
  std::string because =
      absl::StrFormat("the wall clock of %s keeps time with that of node 0 (%s) again", who, config_.node_name);
  if (apart) {
    because = absl::StrFormat(
        "the wall clock of %s is %.3f s %s that of node 0 (%s), %g s is the limit (--clock-limit); do both follow a "
        "time server?",
        who, apart_s, found.offset_ns > 0 ? "ahead of" : "behind", config_.node_name, config_.spec.clock_limit_s);
  }
  if (apart != clocks_apart_.contains(from)) {
    apart ? (void)clocks_apart_.insert(from) : (void)clocks_apart_.erase(from);
    journal_.write("clock", brain_.identity(), because,
                   {{"of_node", int64_t{from}},
                    {"host", host},
                    {"reference_host", config_.node_name},
                    {"offset_s", seconds_of(found.offset_ns)},
                    {"round_trip_s", seconds_of(found.round_trip_ns)},
                    {"limit_s", config_.spec.clock_limit_s},
                    {"ok", !apart}});
    pump_.say("keepstep: " + because);
  }
  if (!apart || !config_.spec.refuse_clocks_apart || !comes) {
    return true;  // who takes part already is not thrown out: that would cost more than it mends
  }
  clocks_apart_.erase(from);  // it may come again, with another clock
  refuse_or_end(from, absl::StrFormat("%s cannot take part: %s", who, because));
  return false;
}

}  // namespace keepstep::agent
