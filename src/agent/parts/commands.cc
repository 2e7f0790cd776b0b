#include "agent/parts/commands.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "agent/parts/worker_stacks.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {

namespace {

constexpr int64_t kDoorCheckNs = 5'000'000'000;

// The user's name for the job, or else the script's name and four letters. It is the same on all nodes and differs
// between runs.
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

void Commands::open() {
  open_door();
  open_endpoint();
}

void Commands::close() {
  door_.reset();
  if (core_.config.take_commands) {
    core_.config.take_commands(nullptr);
  }
}

void Commands::open_door() {
  core_.job = job_in_names(job_name(core_.config.spec));
  auto door = ControlDoor::open(
      *core_.loop, core_.job,
      [this](const nlohmann::json& request, const ControlDoor::Answer& answer) { on_request(request, answer); },
      [this](const std::string& because, uint64_t count) {
        core_.journal.write("refused", {}, "control door: " + because, {{"count", static_cast<int64_t>(count)}});
      });
  if (!door.ok()) {
    spdlog::warn("no commands will reach this job (keepstep stacks, inject, scale): {}",
                 std::string(door.status().message()));
    return;
  }
  door_ = *std::move(door);
  core_.journal.write("control_door", {}, "", {{"job", core_.job}, {"pid", int64_t{getpid()}}});
}

// When a user's last session ends, everything in /run/user/UID is removed, and the job may go on.
void Commands::keep_open() {
  if (door_ == nullptr || monotonic_ns() < door_checked_ns_ + kDoorCheckNs) {
    return;
  }
  door_checked_ns_ = monotonic_ns();
  const std::string before = door_->path();
  if (door_->keep_open().ok() && door_->path() != before) {
    core_.journal.write("control_door", {}, "somebody had removed its file",
                        {{"job", core_.job}, {"pid", int64_t{getpid()}}});
  }
}

// The other way in: a command whose sender proved the job token to node 0's coordinator.
void Commands::open_endpoint() {
  if (core_.config.take_commands) {
    core_.config.take_commands(
        [this, loop = core_.loop](std::string request, std::function<void(const std::string&)> answer) {
          loop->post([this, request = std::move(request), answer = std::move(answer)] { on_asked(request, answer); });
        });
  }
}

void Commands::on_asked(const std::string& request, const std::function<void(const std::string&)>& answer) {
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

void Commands::on_request(const nlohmann::json& request, const ControlDoor::Answer& answer) {
  const std::string op = request.at("op");
  if (op == "describe") {
    answer(describe());
  } else if (op == "stacks") {
    answer_stacks(request.value("native", false), answer);
  } else if (op == "inject") {
    const StatusOr<std::string> done = parts_.faults.inject(request.at("fault"));
    answer(done.ok() ? nlohmann::json{{"ok", true}, {"done", *done}}
                     : error_answer(std::string(done.status().message())));
  } else if (op == "memory") {
    parts_.memory.ask(request, answer);
  } else if (parts_.publications == nullptr && (op == "publications" || op == "publication")) {
    answer(error_answer("this launcher takes no publications; its log says why"));
  } else if (op == "publications") {
    answer(publications());
  } else if (op == "publication") {
    answer(piece_of_publication(request));
  } else if (op == "scale" && !request.contains("replicas") && !request.contains("policy")) {
    const StatusOr<nlohmann::json> size = parts_.elastic.describe();
    answer(size.ok() ? *size : error_answer(std::string(size.status().message())));
  } else if (op == "scale") {
    const StatusOr<std::string> done = parts_.elastic.scale(request);
    answer(done.ok() ? nlohmann::json{{"ok", true}, {"done", *done}}
                     : error_answer(std::string(done.status().message())));
  } else {
    answer(
        error_answer(absl::StrFormat("this version of keepstep (%s) knows no request '%s'", core_.config.version, op)));
  }
}

nlohmann::json Commands::describe() const {
  nlohmann::json ranks = nlohmann::json::array();
  size_t spares = 0;
  for (const auto& [id, process] : core_.workers) {
    if (!core_.is_dead(*process) && core_.rank_of(*process).has_value()) {
      ranks.push_back({{"rank", *core_.rank_of(*process)}, {"worker", id}, {"pid", process->pid}});
    }
    spares += !core_.is_dead(*process) && !core_.rank_of(*process).has_value() && process->parked;
  }
  std::set<brain::NodeId> nodes;  // with ranks
  if (core_.config.spec.elastic && core_.brain.prepared() != nullptr) {
    for (const brain::RankTable::Entry& entry : core_.brain.prepared()->table.entries()) {
      nodes.insert(entry.node);
    }
  }
  return {{"ok", true},
          {"job", core_.job},
          {"pid", getpid()},
          {"node", core_.config.node},
          {"nodes", nodes.empty() ? size_t{core_.config.spec.nnodes} : nodes.size()},
          {"size", parts_.elastic.in_short()},
          {"script", core_.config.spec.script},
          {"journal", absolute(core_.config.spec.journal_dir)},
          {"world", core_.world()},
          {"ranks", ranks},
          {"spares", spares},
          {"step", core_.metrics.last_step()},
          {"generation", core_.brain.identity().generation},
          {"recoveries", parts_.moment.recoveries()},
          {"note", parts_.moment.in_words()},
          {"stragglers", parts_.pace.describe()},
          {"version", core_.config.version}};
}

nlohmann::json Commands::publications() const {
  nlohmann::json found = nlohmann::json::array();
  for (const Publication& each : parts_.publications->newest()) {
    found.push_back({{"name", each.name},
                     {"version", each.version},
                     {"serial", each.serial},
                     {"bytes", each.bytes},
                     {"age_ns", monotonic_ns() - each.arrived_ns}});
  }
  return {{"ok", true},
          {"job", core_.job},
          {"socket", parts_.publications->path()},
          {"service", parts_.publications->id()},
          {"publications", found}};
}

nlohmann::json Commands::piece_of_publication(const nlohmann::json& request) const {
  const auto piece = parts_.publications->read(request.at("name"), request.at("serial"), request.at("offset"));
  if (absl::IsNotFound(piece.status())) {
    return {{"ok", true}, {"gone", std::string(piece.status().message())}};
  }
  if (!piece.ok()) {
    return error_answer(std::string(piece.status().message()));
  }
  return {{"ok", true},
          {"gone", nullptr},
          {"version", piece->of.version},
          {"serial", piece->of.serial},
          {"bytes", piece->of.bytes},
          {"data", absl::Base64Escape(piece->bytes)}};
}

void Commands::answer_stacks(bool native, const ControlDoor::Answer& answer) {
  if (core_.config.spec.no_python) {
    answer(error_answer("the job runs a program (--no-python); stacks are read of Python processes"));
    return;
  }
  std::vector<std::shared_ptr<WorkerProcess>> processes;
  for (const auto& [id, process] : core_.workers) {
    if (process->pid != 0 && !core_.is_dead(*process)) {
      processes.push_back(process);
    }
  }
  // In rank order; those without a rank last.
  std::stable_sort(processes.begin(), processes.end(), [this](const auto& a, const auto& b) {
    return core_.rank_of(*a).value_or(brain::kNoWorker) < core_.rank_of(*b).value_or(brain::kNoWorker);
  });
  StackLimits limits;
  limits.native = native;
  take_stacks_of(core_, processes, limits, [answer](const StatusOr<std::vector<RankStacks>>& stacks) {
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

}  // namespace keepstep::agent
