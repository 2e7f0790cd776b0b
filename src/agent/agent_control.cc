// The agent's third part: what comes through its control door, or to the job's endpoint, and faults that are injected.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "agent/agent.h"
#include "agent/watch/stacks.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {

using brain::Identity;
using worker::Message;
using worker::MessageType;

namespace {

constexpr int64_t kDoorCheckNs = 5'000'000'000;
constexpr const char* kLive = "live/";  // keys of faults that came through the door

// What the user called the job, else the script's name and four letters: the same on all nodes, another each time.
std::string job_name(const JobSpec& spec) {
  if (spec.run_id != "none") {
    return spec.run_id;
  }
  const std::string stem = spec.module ? spec.script : std::filesystem::path(spec.script).stem().string();
  const std::string endpoint = absl::StrFormat("%s:%d", spec.endpoint_host, spec.endpoint_port);
  const std::string random = random_nonce();
  const uint64_t mixed =
      spec.several_nodes() ? checksum(endpoint.data(), endpoint.size()) : checksum(random.data(), random.size());
  return absl::StrFormat("%s-%04x", stem, mixed & 0xffff);
}

std::string absolute(const std::string& folder) {
  std::error_code error;
  return folder.empty() ? "" : std::filesystem::weakly_canonical(folder, error).string();
}

}  // namespace

void Agent::open_door() {
  for (size_t i = 0; i < config_.spec.inject.size(); ++i) {
    if (auto spec = parse_inject(config_.spec.inject[i]); spec.ok()) {  // the launcher has checked it
      faults_.emplace(std::to_string(i), *std::move(spec));
    }
  }
  job_ = job_in_names(job_name(config_.spec));
  auto door = ControlDoor::open(
      *loop_, job_,
      [this](const nlohmann::json& request, const ControlDoor::Answer& answer) { on_request(request, answer); },
      [this](const std::string& because, uint64_t count) {
        journal_.write("refused", {}, "control door: " + because, {{"count", static_cast<int64_t>(count)}});
      });
  if (!door.ok()) {
    spdlog::warn("no commands will reach this job (keepstep stacks, inject, scale): {}",
                 std::string(door.status().message()));
    return;
  }
  door_ = *std::move(door);
  journal_.write("control_door", {}, "", {{"job", job_}, {"pid", int64_t{getpid()}}});
}

// The last session of a user takes all in /run/user/UID along when it ends, and the job may go on.
void Agent::keep_door_open() {
  if (door_ == nullptr || monotonic_ns() < door_checked_ns_ + kDoorCheckNs) {
    return;
  }
  door_checked_ns_ = monotonic_ns();
  const std::string before = door_->path();
  if (door_->keep_open().ok() && door_->path() != before) {
    journal_.write("control_door", {}, "somebody had removed its file", {{"job", job_}, {"pid", int64_t{getpid()}}});
  }
}

// The other way in: a command that proved the job token to node 0's coordinator.
void Agent::open_endpoint() {
  if (config_.take_commands) {
    config_.take_commands([this, loop = loop_](std::string request, std::function<void(const std::string&)> answer) {
      loop->post([this, request = std::move(request), answer = std::move(answer)] { on_asked(request, answer); });
    });
  }
}

void Agent::on_asked(const std::string& request, const std::function<void(const std::string&)>& answer) {
  const ControlDoor::Answer reply = [answer](const nlohmann::json& body) { answer(answer_text(body)); };
  const nlohmann::json parsed = nlohmann::json::parse(request, nullptr, false);
  if (!parsed.is_object()) {
    reply(error_answer("a request that is no JSON object"));
    return;
  }
  try {
    on_request(parsed, reply);
  } catch (const nlohmann::json::exception& error) {
    reply(lacking_answer(error));
  }
}

void Agent::on_request(const nlohmann::json& request, const ControlDoor::Answer& answer) {
  const std::string op = request.at("op");
  if (op == "describe") {
    answer(describe());
  } else if (op == "stacks") {
    answer_stacks(request.value("native", false), answer);
  } else if (op == "inject") {
    const StatusOr<std::string> done = inject(request.at("fault"));
    answer(done.ok() ? nlohmann::json{{"ok", true}, {"done", *done}}
                     : error_answer(std::string(done.status().message())));
  } else if (op == "memory") {
    answer_memory(request, answer);
  } else if (op == "scale" && !request.contains("replicas") && !request.contains("policy")) {
    const StatusOr<nlohmann::json> size = describe_size();
    answer(size.ok() ? *size : error_answer(std::string(size.status().message())));
  } else if (op == "scale") {
    const StatusOr<std::string> done = scale(request);
    answer(done.ok() ? nlohmann::json{{"ok", true}, {"done", *done}}
                     : error_answer(std::string(done.status().message())));
  } else {
    answer(error_answer(absl::StrFormat("this version of keepstep (%s) knows no request '%s'", config_.version, op)));
  }
}

nlohmann::json Agent::describe() const {
  nlohmann::json ranks = nlohmann::json::array();
  size_t spares = 0;
  for (const auto& [id, process] : workers_) {
    if (!is_dead(*process) && rank_of(*process).has_value()) {
      ranks.push_back({{"rank", *rank_of(*process)}, {"worker", id}, {"pid", process->pid}});
    }
    spares += !is_dead(*process) && !rank_of(*process).has_value() && process->parked;
  }
  std::set<brain::NodeId> nodes;  // with ranks
  if (config_.spec.elastic && brain_.prepared() != nullptr) {
    for (const brain::RankTable::Entry& entry : brain_.prepared()->table.entries()) {
      nodes.insert(entry.node);
    }
  }
  nlohmann::json size;  // what the policy allows now, only node 0 knows
  if (policy_ && config_.node == 0) {
    size = {{"replicas", replicas()}, {"min", policy_->config().min_replicas}, {"max", policy_->config().max_replicas}};
  }
  return {{"ok", true},
          {"job", job_},
          {"pid", getpid()},
          {"node", config_.node},
          {"nodes", nodes.empty() ? size_t{config_.spec.nnodes} : nodes.size()},
          {"size", size},
          {"script", config_.spec.script},
          {"journal", absolute(config_.spec.journal_dir)},
          {"world", world()},
          {"ranks", ranks},
          {"spares", spares},
          {"step", metrics_.last_step()},
          {"generation", brain_.identity().generation},
          {"recoveries", recoveries_},
          {"note", note()},
          {"stragglers", describe_stragglers()},
          {"version", config_.version}};
}

// What `process` is in the middle of, as its page says.
RankFacts Agent::facts_of(const WorkerProcess& process) const {
  RankFacts facts{rank_of(process), process.id, 0, ""};
  const brain::StepWord word = brain::unpack_step_word(process.page().word.load());
  if (facts.rank.has_value() && word.identity.generation != 0) {
    facts.step = word.step;
  }
  return facts;
}

void Agent::take_stacks_of(const std::vector<std::shared_ptr<WorkerProcess>>& processes, const StackLimits& limits,
                           std::function<void(StatusOr<std::vector<RankStacks>>)> done) {
  const StatusOr<std::string> py_spy = find_py_spy(config_.spec.python);
  if (!py_spy.ok()) {
    done(py_spy.status());
    return;
  }
  std::vector<RankStacks> taken;
  std::vector<pid_t> pids;
  for (const auto& process : processes) {
    taken.push_back({facts_of(*process), {}});
    pids.push_back(process->pid);
  }
  take_stacks(*loop_, *py_spy, pids, limits,
              [taken = std::move(taken), done = std::move(done)](std::vector<ProcessStacks> stacks) mutable {
                for (size_t i = 0; i < stacks.size(); ++i) {
                  taken[i].stacks = std::move(stacks[i]);
                }
                done(std::move(taken));
              });
}

void Agent::answer_stacks(bool native, const ControlDoor::Answer& answer) {
  if (config_.spec.no_python) {
    answer(error_answer("the job runs a program (--no-python); stacks are read of Python processes"));
    return;
  }
  std::vector<std::shared_ptr<WorkerProcess>> processes;
  for (const auto& [id, process] : workers_) {
    if (process->pid != 0 && !is_dead(*process)) {
      processes.push_back(process);
    }
  }
  // In rank order; those without a rank last.
  std::stable_sort(processes.begin(), processes.end(), [this](const auto& a, const auto& b) {
    return rank_of(*a).value_or(brain::kNoWorker) < rank_of(*b).value_or(brain::kNoWorker);
  });
  StackLimits limits;
  limits.native = native;
  take_stacks_of(processes, limits, [answer](const StatusOr<std::vector<RankStacks>>& stacks) {
    if (!stacks.ok()) {
      answer(error_answer(std::string(stacks.status().message())));
      return;
    }
    nlohmann::json ranks = nlohmann::json::array();
    for (const RankStacks& rank : *stacks) {
      ranks.push_back(to_json(rank));
    }
    answer({{"ok", true}, {"ranks", std::move(ranks)}});
  });
}

nlohmann::json Agent::waiting_faults() const {
  nlohmann::json faults = nlohmann::json::array();
  for (const auto& [key, spec] : faults_) {
    if (!injected_.contains(key)) {
      faults.push_back(to_json(spec, key, key.starts_with(kLive)));
    }
  }
  return faults;
}

StatusOr<std::string> Agent::inject(const std::string& text) {
  if (!config_.spec.allow_inject) {
    return absl::PermissionDeniedError(
        "this job was started without --allow-inject, so no fault can be caused while it runs");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const InjectSpec spec, parse_inject(text, InjectFor::kNow));
  if (end_.has_value()) {
    return absl::FailedPreconditionError("the job is ending");
  }
  if (spec.rank.has_value() && *spec.rank >= world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no rank %d; ranks are 0 to %d", *spec.rank, world() - 1));
  }
  if (spec.rank.has_value() && brain_.prepared() != nullptr &&
      brain_.prepared()->table.place(*spec.rank).node != config_.node) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d is on node %d and this is the launcher of node %d; say it there", *spec.rank,
                        brain_.prepared()->table.place(*spec.rank).node, config_.node));
  }
  if (spec.on_spare && config_.spec.spares == 0) {
    return absl::InvalidArgumentError("the job has no spares");
  }
  if (spec.step.has_value() && *spec.step <= metrics_.last_step()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("step %d is past: the job has committed step %d", *spec.step, metrics_.last_step()));
  }
  const bool at_once = !spec.step && !spec.phase && !spec.probability && !spec.times && !spec.on_spare;
  if (at_once && by_agent(spec.kind)) {
    write_injected(spec, nullptr, 0, "");
    loop_->post([this, spec] { carry_out(spec, nullptr); });  // once the answer is out
    return absl::StrFormat("%s: the launcher of node %d, pid %d, does it now", name(spec.kind), config_.node, getpid());
  }
  if (at_once && signal_of(spec.kind) != 0) {
    return signal_rank(spec);
  }
  if (config_.spec.no_python) {
    return absl::InvalidArgumentError(
        "the job runs a program (--no-python): only kill, segv, stop, agent-kill, agent-stop and disk-full, without a "
        "step and a phase, can be injected");
  }
  const std::string key = absl::StrFormat("%s%d/%d", kLive, config_.node, ++live_faults_);
  faults_.emplace(key, spec);
  size_t told = 0;
  for (const auto& [id, process] : workers_) {
    if (process->pid != 0 && !is_dead(*process)) {
      tell(*process, MessageType::kInject, {}, to_json(spec, key, true));
      ++told;
    }
  }
  return absl::StrFormat("%s: %s carries it out in phase %s of %s; %d processes were told", name(spec.kind),
                         spec.rank ? absl::StrFormat("rank %d", *spec.rank) : "the first rank that gets there",
                         name(spec.phase.value_or(default_phase(spec))),
                         spec.step ? absl::StrFormat("step %d", *spec.step) : "its next step", told);
}

// A fault that a signal from outside is, whatever the process is doing.
StatusOr<std::string> Agent::signal_rank(const InjectSpec& spec) {
  std::shared_ptr<WorkerProcess> chosen;
  for (const auto& process : living_members()) {
    if (process->pid != 0 && rank_of(*process).has_value() && (!spec.rank || *rank_of(*process) == *spec.rank)) {
      chosen = process;
      break;
    }
  }
  if (chosen == nullptr) {
    return absl::FailedPreconditionError(
        spec.rank ? absl::StrFormat("rank %d has no process right now; try again", *spec.rank)
                  : "no rank has a process right now; try again");
  }
  write_injected(spec, chosen.get(), 0, "");
  kill(chosen->pid, signal_of(spec.kind));
  carry_out(spec, chosen);
  return absl::StrFormat("%s: rank %d, pid %d, got %s", name(spec.kind), *rank_of(*chosen), chosen->pid,
                         sigabbrev_np(signal_of(spec.kind)) == nullptr
                             ? "its signal"
                             : absl::StrFormat("SIG%s", sigabbrev_np(signal_of(spec.kind))));
}

void Agent::write_injected(const InjectSpec& spec, const WorkerProcess* process, int64_t at_ns,
                           const std::string& detail) {
  std::vector<brain::Field> fields = {{"fault", std::string(name(spec.kind))}};
  if (process != nullptr) {
    fields.emplace_back("worker", int64_t{process->id});
    fields.emplace_back("rank", int64_t{rank_of(*process).value_or(0)});
    if (const uint64_t step = facts_of(*process).step; step != 0) {
      fields.emplace_back("step", static_cast<int64_t>(step));
    }
  }
  if (!detail.empty()) {
    fields.emplace_back("detail", detail);
  }
  fields.emplace_back("at_mono", static_cast<double>(at_ns != 0 ? at_ns : monotonic_ns()) * 1e-9);
  journal_.write("injected", brain_.identity(), spec.text, fields);
}

void Agent::on_injected(const std::shared_ptr<WorkerProcess>& process, const Message& message) {
  const nlohmann::json& body = message.body;
  const std::string key = body.at("key");
  const auto it = faults_.find(key);
  if (it == faults_.end()) {
    refuse(*process, "it carries out a fault that nobody asked for: " + key);
    return;
  }
  if (body.at("last").get<bool>()) {
    injected_.insert(key);
  }
  write_injected(it->second, process.get(), body.at("ns"), body.value("detail", ""));
  carry_out(it->second, process);
}

// The agent's part of a fault: all of it, or its end.
void Agent::carry_out(const InjectSpec& spec, const std::shared_ptr<WorkerProcess>& process) {
  const auto later = [&](std::function<void()> task) {
    const auto seconds = std::chrono::duration<double>(*spec.seconds);
    auto timer = Timer::after(*loop_, std::chrono::duration_cast<std::chrono::nanoseconds>(seconds), std::move(task));
    if (timer.ok()) {
      timers_.push_back(*std::move(timer));
    }
  };
  if (spec.kind == InjectKind::kAgentKill || spec.kind == InjectKind::kAgentStop ||
      spec.kind == InjectKind::kDiskFull) {
    journal_.flush(observe::Journal::kGoodbye);  // what was done is known, though the journal can say no more
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
        groups_.insert(**waker);
      }
      break;
    }
    case InjectKind::kDiskFull:
      if (const auto files = full_disk_.fill({config_.spec.journal_dir, config_.spec.log_dir}); !files.ok()) {
        spdlog::warn("disk-full: {}", std::string(files.status().message()));
      } else if (spec.seconds.has_value()) {
        later([this] { full_disk_.drain(); });
      }
      break;
    default:
      break;  // the rank's own
  }
}

}  // namespace keepstep::agent
