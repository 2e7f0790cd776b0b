#include "agent/nodes/clocks.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

constexpr int kMaxUnanswered = 3;  // then it joins anyway: node 0 may not know the question

int64_t wall_ns() { return static_cast<int64_t>(wall_seconds() * 1e9); }
double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

bool Clocks::compares() const {
  return core_.config.spec.several_nodes() && core_.config.node != 0 && core_.config.spec.clock_limit_s > 0;
}

bool Clocks::asks_first() {
  const bool gives_up = probe_.unanswered() >= kMaxUnanswered && !core_.config.spec.refuse_clocks_apart;
  if (!compares() || probe_.result().has_value() || gives_up) {
    return false;
  }
  ask();
  return true;
}

void Clocks::ask() {
  const uint64_t number = probe_.ask(wall_ns(), monotonic_ns());
  core_.route(0, messages::ClockQuestion{number});
}

std::optional<messages::ClockReport> Clocks::report() const {
  const std::optional<ClockOffset> found = probe_.result();
  return found.has_value() ? std::optional(messages::ClockReport{found->offset_ns, found->round_trip_ns})
                           : std::nullopt;
}

void Clocks::watch() {
  const auto every_ns = static_cast<int64_t>(core_.config.spec.health_interval_s * 1e9);
  if (compares() && core_.joined_job && !core_.end.has_value() && monotonic_ns() - asked_ns_ > every_ns) {
    asked_ns_ = monotonic_ns();
    probe_.begin();
    ask();
  }
}

bool Clocks::on_answer(const messages::ClockAnswer& answer) {
  if (!probe_.answered(answer.number, answer.wall_ns, monotonic_ns())) {
    return false;
  }
  const std::optional<messages::ClockReport> found = report();
  if (!found.has_value()) {
    ask();
    return false;
  }
  asked_ns_ = monotonic_ns();
  if (!core_.joined_job) {
    return true;
  }
  core_.route(0, *found);
  return false;
}

void Clocks::answer(brain::NodeId from, const messages::ClockQuestion& question) {
  core_.route(from, messages::ClockAnswer{question.number, wall_ns()});
}

void Clocks::on_report(brain::NodeId from, const messages::ClockReport& report) {
  // A node that takes part already is not removed: that would cost more than it helps.
  (void)judge(from, core_.joined.contains(from) ? core_.joined.at(from) : "?", report);
}

std::optional<std::string> Clocks::why_not(brain::NodeId from, const std::string& host,
                                           const messages::ClockReport& report) {
  const Judged judged = judge(from, host, report);
  if (!judged.apart || !core_.config.spec.refuse_clocks_apart) {
    return std::nullopt;
  }
  apart_.erase(from);  // it may join again, with another clock
  return absl::StrFormat("node %d (%s) cannot take part: %s", from, host, judged.because);
}

Clocks::Judged Clocks::judge(brain::NodeId from, const std::string& host, const messages::ClockReport& report) {
  if (core_.config.spec.clock_limit_s <= 0) {
    return {};
  }
  const ClockOffset found{report.offset_ns, report.round_trip_ns};
  const bool apart = found.beyond(static_cast<int64_t>(core_.config.spec.clock_limit_s * 1e9));
  const double apart_s = std::abs(seconds_of(found.offset_ns));
  const std::string who = absl::StrFormat("node %d (%s)", from, host);
  std::string because =
      absl::StrFormat("the wall clock of %s keeps time with that of node 0 (%s) again", who, core_.config.node_name);
  if (apart) {
    because = absl::StrFormat(
        "the wall clock of %s is %.3f s %s that of node 0 (%s), %g s is the limit (--clock-limit); do both follow a "
        "time server?",
        who, apart_s, found.offset_ns > 0 ? "ahead of" : "behind", core_.config.node_name,
        core_.config.spec.clock_limit_s);
  }
  if (apart != apart_.contains(from)) {
    apart ? (void)apart_.insert(from) : (void)apart_.erase(from);
    core_.journal.write("clock", core_.brain.identity(), because,
                        {{"of_node", int64_t{from}},
                         {"host", host},
                         {"reference_host", core_.config.node_name},
                         {"offset_s", seconds_of(found.offset_ns)},
                         {"round_trip_s", seconds_of(found.round_trip_ns)},
                         {"limit_s", core_.config.spec.clock_limit_s},
                         {"ok", !apart}});
    core_.pump.say("keepstep: " + because);
  }
  return {apart, because};
}

}  // namespace keepstep::agent
