#include "cli/commands/machine_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/agent.h"
#include "agent/loop/event_loop.h"
#include "agent/watch/kernel.h"
#include "agent/watch/preflight.h"
#include "agent/watch/stacks.h"
#include "agent/workers/temp_folder.h"
#include "base/runtime_folder.h"
#include "cli/commands/print.h"
#include "cli/commands/version.h"
#include "cli/options/run_options.h"
#include "cli/options/run_values.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep machine [--nproc-per-node N] [--stacks-of PID]

For programs: what the engine needs of this machine, and whether it has it, as one JSON object. `keepstep doctor` says it
in words.

  --nproc-per-node N   ranks that a job would have here; else one per GPU, or one per CPU where there is none
  --stacks-of PID      whether the stacks of this Python process can be taken, as `keepstep stacks` does

exit codes: 0 whatever is found; 2 wrong options.
)";

constexpr uint32_t kMaxRanks = 63;  // per node
constexpr pid_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT of 64-bit kernels

struct MachineRequest {
  std::optional<uint32_t> ranks;
  std::optional<pid_t> stacks_of;
  bool help = false;
  std::string mistake;
};

MachineRequest parse(const std::vector<std::string>& args) {
  MachineRequest request;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      request.help = true;
      continue;
    }
    const std::string value = i + 1 < args.size() ? args[i + 1] : "";
    if (args[i] == "--nproc-per-node") {
      request.ranks = integer_in<uint32_t>(value, 1, kMaxRanks);
    } else if (args[i] == "--stacks-of") {
      request.stacks_of = integer_in<pid_t>(value, 1, kMaxPid);
    }
    if ((args[i] == "--nproc-per-node" && request.ranks) || (args[i] == "--stacks-of" && request.stacks_of)) {
      ++i;
    } else {
      request.mistake = absl::StrFormat("'%s %s' is not understood", args[i], value);
      return request;
    }
  }
  return request;
}

nlohmann::json found_or_problem(const StatusOr<std::string>& found) {
  return {{"found", found.ok() ? *found : ""}, {"problem", std::string(found.status().message())}};
}

void add(nlohmann::json& about, const agent::PreflightReport& report) {
  about["errors"] = report.errors;
  about["warnings"] = report.warnings;
}

// Takes a name the way launchers do, and returns the folder that it is in.
StatusOr<std::string> try_runtime_folder() {
  KEEPSTEP_ASSIGN_OR_RETURN(const HeldName name,
                            HeldName::take(absl::StrFormat("doctor-%d-%s", getpid(), this_machine())));
  return name.path().substr(0, name.path().rfind('/'));
}

StatusOr<std::string> try_temp_folder() {
  KEEPSTEP_ASSIGN_OR_RETURN(const agent::TempFolder folder, agent::TempFolder::create());
  return folder.path().parent_path().string();
}

// Why the stacks of `pid` cannot be taken; empty if they can.
StatusOr<std::string> try_stacks(const std::string& py_spy, pid_t pid) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto loop, agent::EventLoop::create());
  std::string problem;
  agent::take_stacks(*loop, py_spy, {pid}, {}, [&](const std::vector<agent::ProcessStacks>& taken) {
    problem = taken.at(0).error;
    loop->stop();
  });
  loop->run();
  return problem;
}

nlohmann::json look(const MachineRequest& request) {
  const Surroundings around = current_surroundings();
  agent::JobSpec spec;
  spec.nproc_per_node =
      request.ranks.value_or(std::clamp(around.gpus > 0 ? around.gpus : around.cpus, uint32_t{1}, kMaxRanks));
  const uint64_t needed = agent::open_files_needed(spec);
  const agent::Machine machine = agent::read_machine(needed);
  const uint64_t shared = agent::shared_memory_bytes(spec);

  nlohmann::json open_files = {{"soft", machine.open_files_soft},
                               {"hard", machine.open_files_hard},
                               {"needed", machine.open_files_used + needed}};
  add(open_files, agent::check_open_files(spec, machine));
  nlohmann::json memory = {{"available_bytes", machine.memory_available_bytes}, {"shared_bytes", shared}};
  add(memory, agent::check_memory(spec, machine, shared));
  nlohmann::json dev_shm = {{"there", machine.has_dev_shm}, {"free_bytes", machine.dev_shm_free_bytes}};
  add(dev_shm, agent::check_dev_shm(machine));

  nlohmann::json kernel = nlohmann::json::array();
  for (const agent::KernelFinding& finding : agent::try_kernel()) {
    kernel.push_back({{"need", finding.need}, {"problem", finding.problem}});
  }
  const StatusOr<std::string> py_spy = around.python.ok() ? agent::find_py_spy(*around.python) : around.python.status();
  nlohmann::json stacks = found_or_problem(py_spy);
  if (py_spy.ok() && request.stacks_of) {
    const StatusOr<std::string> problem = try_stacks(*py_spy, *request.stacks_of);
    stacks["problem"] = problem.ok() ? *problem : std::string(problem.status().message());
  }
  return {{"version", kVersion},
          {"ranks", spec.nproc_per_node},
          {"cpus", around.cpus},
          {"gpus", around.gpus},
          {"python", found_or_problem(around.python)},
          {"open_files", open_files},
          {"memory", memory},
          {"dev_shm", dev_shm},
          {"kernel", kernel},
          {"runtime_folder", found_or_problem(try_runtime_folder())},
          {"temp_folder", found_or_problem(try_temp_folder())},
          {"stacks", stacks}};
}

}  // namespace

int machine_main(const std::vector<std::string>& args) {
  const MachineRequest request = parse(args);
  if (request.help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!request.mistake.empty()) {
    print_line(stderr, "keepstep machine: " + request.mistake);
    return 2;
  }
  print_json(look(request));
  return 0;
}

}  // namespace keepstep::cli
