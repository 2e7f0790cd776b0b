#include "agent/parts/node_health.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace keepstep::agent {

namespace {

constexpr int64_t kDiskHangsNs = 30'000'000'000;

}  // namespace

void NodeHealth::start() {
  if (!core_.config.spec.health_check) {
    return;
  }
  std::vector<std::string> folders;
  for (const std::string& folder : {core_.config.spec.journal_dir, core_.config.spec.log_dir}) {
    if (!folder.empty() && folder != "/dev/null") {
      folders.push_back(folder);
    }
  }
  watch_ = std::make_unique<HealthWatch>(std::move(folders), core_.config.spec.health_interval_s,
                                         [this, loop = core_.loop](HealthReading reading) {
                                           loop->post([this, reading = std::move(reading)] { on_health(reading); });
                                         });
}

void NodeHealth::on_health(const HealthReading& reading) {
  say(judge_health(reading, health_));
  health_ = reading;
}

void NodeHealth::look() {
  const int64_t since_ns = watch_ == nullptr ? 0 : watch_->measuring_since_ns();
  const bool said = std::ranges::any_of(unhealthy_, [](const HealthFinding& each) { return each.check == "disk"; });
  if (since_ns != 0 && monotonic_ns() - since_ns > kDiskHangsNs && !said) {
    std::vector<HealthFinding> findings = unhealthy_;  // nothing new is known about these
    findings.push_back({"disk", "a write of 4 KiB does not complete", absl::StrFormat("%g s", kDiskHangsNs * 1e-9)});
    say(std::move(findings));
  }
}

// Reports once when something turns bad, and once when all is well again.
void NodeHealth::say(std::vector<HealthFinding> findings) {
  const auto known = [](const std::vector<HealthFinding>& among, const HealthFinding& one) {
    return std::ranges::any_of(among, [&](const HealthFinding& each) { return each.check == one.check; });
  };
  for (const HealthFinding& finding : findings) {
    if (!known(unhealthy_, finding)) {
      const std::string because = absl::StrFormat("%s: %s (limit: %s)", finding.check, finding.measured, finding.limit);
      core_.journal.write(
          "health", {}, because,
          {{"check", finding.check}, {"measured", finding.measured}, {"limit", finding.limit}, {"ok", false}});
      core_.pump.say(absl::StrFormat("keepstep: node %d is unhealthy: %s", core_.config.node, because));
    }
  }
  for (const HealthFinding& before : unhealthy_) {
    if (!known(findings, before)) {
      core_.journal.write("health", {}, before.check + " is well again", {{"check", before.check}, {"ok", true}});
    }
  }
  unhealthy_ = std::move(findings);
}

// A worker that failed its check is about to exit; the brain replaces it. It may not be the worker's fault.
void NodeHealth::on_unfit(const std::shared_ptr<WorkerProcess>& process, const messages::Unfit& unfit) {
  process->unfit = absl::StrFormat("%s: %s (limit: %s)", unfit.check, unfit.measured, unfit.limit);
  core_.journal.write("unfit", {}, process->unfit,
                      {{"worker", int64_t{process->id}},
                       {"pid", int64_t{process->pid}},
                       {"check", unfit.check},
                       {"measured", unfit.measured},
                       {"limit", unfit.limit}});
  core_.pump.say(absl::StrFormat("keepstep: worker %d is not used: %s", process->id, process->unfit));
  if (!unfit.counts || !fitness_.failed()) {
    return;
  }
  const std::string because = absl::StrFormat(
      "node %d (%s) is not fit for ranks: %d workers in a row failed their health check, the last one "
      "with %s. Look at that machine; --health-check off leaves the checks out",
      core_.config.node, core_.config.node_name, NodeFitness::kMaxInARow, process->unfit);
  if (core_.config.node == 0) {
    core_.stop_job(1, because);
  } else {
    core_.gives_up = true;
    core_.loop->post([this, because] { core_.end_job({1, because, ""}); });
  }
}

void NodeHealth::apply_log_rules() {
  if (core_.log_watch == nullptr) {
    return;
  }
  for (const LogFinding& finding : core_.log_watch->take(monotonic_ns())) {
    const auto it = core_.workers.find(finding.worker);
    const char* const actions[] = {"journal", "replace", "stop"};
    const brain::Identity identity = core_.brain.identity();
    const std::string because =
        absl::StrFormat("rank %d broke the log rule '%s': it %s", finding.rank, finding.rule, finding.what);
    core_.journal.write("log_rule", identity, because,
                        {{"rule", finding.rule},
                         {"action", std::string(actions[static_cast<int>(finding.action)])},
                         {"rank", int64_t{finding.rank}},
                         {"worker", int64_t{finding.worker}},
                         {"repeats", static_cast<int64_t>(finding.repeats)}});
    if (finding.action == RuleAction::kJournal || core_.end.has_value()) {
      continue;  // no worker is left to replace, and nothing to stop
    }
    core_.pump.say("keepstep: " + because);
    if (finding.action == RuleAction::kStop) {
      core_.stop_job(1, because);
    } else if (it != core_.workers.end() && !core_.is_dead(*it->second)) {
      kill_process(*it->second);  // its death is noticed, and it is replaced
    }
  }
}

}  // namespace keepstep::agent
