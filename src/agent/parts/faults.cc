#include "agent/parts/faults.h"

#include <csignal>
#include <cstring>
#include <utility>

#include "agent/parts/worker_stacks.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {

namespace {

constexpr const char* kLive = "live/";  // keys of faults from the control door

}  // namespace

Faults::Faults(AgentCore& core) : core_(core) {
  for (size_t i = 0; i < core_.config.spec.inject.size(); ++i) {
    if (auto spec = parse_inject(core_.config.spec.inject[i]); spec.ok()) {  // the launcher has checked it
      faults_.emplace(std::to_string(i), *std::move(spec));
    }
  }
}

std::vector<messages::Fault> Faults::waiting() const {
  std::vector<messages::Fault> faults;
  for (const auto& [key, spec] : faults_) {
    if (!injected_.contains(key)) {
      faults.push_back(for_worker(spec, key, key.starts_with(kLive)));
    }
  }
  return faults;
}

StatusOr<std::string> Faults::inject(const std::string& text) {
  if (!core_.config.spec.allow_inject) {
    return absl::PermissionDeniedError(
        "this job was started without --allow-inject, so no fault can be caused while it runs");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const InjectSpec spec, parse_inject(text, InjectFor::kNow));
  if (core_.end.has_value()) {
    return absl::FailedPreconditionError("the job is ending");
  }
  if (spec.rank.has_value() && *spec.rank >= core_.world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no rank %d; ranks are 0 to %d", *spec.rank, core_.world() - 1));
  }
  if (spec.rank.has_value() && core_.brain.prepared() != nullptr &&
      core_.brain.prepared()->table.locate(*spec.rank).node != core_.config.node) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d is on node %d and this is the launcher of node %d; run the command on that node",
                        *spec.rank, core_.brain.prepared()->table.locate(*spec.rank).node, core_.config.node));
  }
  if (spec.on_spare && core_.config.spec.spares == 0) {
    return absl::InvalidArgumentError("the job has no spares");
  }
  if (spec.step.has_value() && *spec.step <= core_.metrics.last_step()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("step %d is past: the job has committed step %d", *spec.step, core_.metrics.last_step()));
  }
  const bool at_once = !spec.step && !spec.phase && !spec.probability && !spec.times && !spec.on_spare;
  if (at_once && by_agent(spec.kind)) {
    write(spec, nullptr, 0, "");
    core_.loop->post([this, spec] { carry_out(spec, nullptr); });  // after the answer was sent
    return absl::StrFormat("%s: carried out now by the launcher of node %d, pid %d", name(spec.kind), core_.config.node,
                           getpid());
  }
  if (at_once && signal_of(spec.kind) != 0) {
    return signal_rank(spec);
  }
  if (core_.config.spec.no_python) {
    return absl::InvalidArgumentError(
        "the job runs a program (--no-python): only kill, segv, stop, agent-kill, agent-stop and disk-full, without a "
        "step and a phase, can be injected");
  }
  const std::string key = absl::StrFormat("%s%d/%d", kLive, core_.config.node, ++live_);
  faults_.emplace(key, spec);
  size_t told = 0;
  for (const auto& [id, process] : core_.workers) {
    if (process->pid != 0 && !core_.is_dead(*process)) {
      core_.tell(*process, {}, messages::Inject{for_worker(spec, key, true)});
      ++told;
    }
  }
  return absl::StrFormat("%s: %s carries it out in phase %s of %s; %d processes were told", name(spec.kind),
                         spec.rank ? absl::StrFormat("rank %d", *spec.rank) : "the first rank that gets there",
                         name(spec.phase.value_or(default_phase(spec))),
                         spec.step ? absl::StrFormat("step %d", *spec.step) : "its next step", told);
}

// A fault that is caused by a signal from outside, whatever the process is doing.
StatusOr<std::string> Faults::signal_rank(const InjectSpec& spec) {
  std::shared_ptr<WorkerProcess> chosen;
  for (const auto& process : core_.living_members()) {
    if (process->pid != 0 && core_.rank_of(*process).has_value() &&
        (!spec.rank || *core_.rank_of(*process) == *spec.rank)) {
      chosen = process;
      break;
    }
  }
  if (chosen == nullptr) {
    return absl::FailedPreconditionError(
        spec.rank ? absl::StrFormat("rank %d has no process right now; try again", *spec.rank)
                  : "no rank has a process right now; try again");
  }
  write(spec, chosen.get(), 0, "");
  kill(chosen->pid, signal_of(spec.kind));
  carry_out(spec, chosen);
  return absl::StrFormat("%s: rank %d, pid %d, got %s", name(spec.kind), *core_.rank_of(*chosen), chosen->pid,
                         sigabbrev_np(signal_of(spec.kind)) == nullptr
                             ? "its signal"
                             : absl::StrFormat("SIG%s", sigabbrev_np(signal_of(spec.kind))));
}

void Faults::write(const InjectSpec& spec, const WorkerProcess* process, int64_t at_ns, const std::string& detail) {
  std::vector<brain::Field> fields = {{"fault", std::string(name(spec.kind))}};
  if (process != nullptr) {
    fields.emplace_back("worker", int64_t{process->id});
    fields.emplace_back("rank", int64_t{core_.rank_of(*process).value_or(0)});
    if (const uint64_t step = facts_of(core_, *process).step; step != 0) {
      fields.emplace_back("step", static_cast<int64_t>(step));
    }
  }
  if (!detail.empty()) {
    fields.emplace_back("detail", detail);
  }
  fields.emplace_back("at_mono", static_cast<double>(at_ns != 0 ? at_ns : monotonic_ns()) * 1e-9);
  core_.journal.write("injected", core_.brain.identity(), spec.text, fields);
}

bool Faults::on_injected(const std::shared_ptr<WorkerProcess>& process, const messages::Injected& injected) {
  const auto it = faults_.find(injected.key);
  if (it == faults_.end()) {
    return false;
  }
  happened_.insert(injected.key);
  if (injected.last) {
    injected_.insert(injected.key);
  }
  write(it->second, process.get(), injected.ns, injected.detail);
  carry_out(it->second, process);
  return true;
}

void Faults::tell_missed() {
  if (core_.config.spec.several_nodes()) {
    return;  // a rank may have moved here after its fault happened elsewhere
  }
  for (const auto& [key, spec] : faults_) {
    if (happened_.contains(key) || spec.probability.has_value()) {  // what happens by chance may not happen
      continue;
    }
    const std::string because =
        absl::StrFormat("the fault '%s' never happened: the job had ranks 0 to %d, and its last step was %d", spec.text,
                        core_.world() - 1, core_.metrics.last_step());
    core_.journal.write("not_injected", core_.brain.identity(), because, {{"fault", std::string(name(spec.kind))}});
    core_.pump.say("keepstep: " + because);
  }
}

// The agent's part of a fault: all of it, or its end.
void Faults::carry_out(const InjectSpec& spec, const std::shared_ptr<WorkerProcess>& process) {
  const auto later = [&](std::function<void()> task) {
    const auto seconds = std::chrono::duration<double>(*spec.seconds);
    auto timer =
        Timer::after(*core_.loop, std::chrono::duration_cast<std::chrono::nanoseconds>(seconds), std::move(task));
    if (timer.ok()) {
      timers_.push_back(*std::move(timer));
    }
  };
  if (spec.kind == InjectKind::kAgentKill || spec.kind == InjectKind::kAgentStop ||
      spec.kind == InjectKind::kDiskFull) {
    core_.journal.flush(observe::Journal::kGoodbye);  // so the fault is on record even if nothing more can be written
  }
  switch (spec.kind) {
    case InjectKind::kStop:
      if (spec.seconds.has_value() && process != nullptr) {
        later([process] {
          if (process->pidfd.valid()) {
            kill(process->pid, SIGCONT);
          }
        });
      }
      break;
    case InjectKind::kAgentKill:
      kill_this_process();
    case InjectKind::kAgentStop: {
      const auto waker = stop_this_process(
          spec.seconds.has_value() ? std::optional(std::chrono::duration<double>(*spec.seconds)) : std::nullopt);
      if (!waker.ok()) {
        spdlog::warn("agent-stop: {}", std::string(waker.status().message()));
      } else if (waker->has_value()) {
        core_.groups.insert(**waker);
      }
      break;
    }
    case InjectKind::kDiskFull:
      if (const auto files = full_disk_.fill({core_.config.spec.journal_dir, core_.config.spec.log_dir}); !files.ok()) {
        spdlog::warn("disk-full: {}", std::string(files.status().message()));
      } else if (spec.seconds.has_value()) {
        later([this] { full_disk_.clear(); });
      }
      break;
    default:
      break;  // the rank does it
  }
}

}  // namespace keepstep::agent
