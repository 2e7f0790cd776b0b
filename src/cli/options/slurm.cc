#include "cli/options/slurm.h"

#include "absl/strings/str_format.h"
#include "cli/options/run_values.h"

namespace keepstep::cli {
namespace {

constexpr uint32_t kMaxNodes = 1'000'000;
constexpr uint64_t kFirstPort = 20000;
constexpr uint64_t kPorts = 10000;

// Reads a number that Slurm sets into `into`, which is unchanged if the variable is not set.
Status take_number(const Environ& environ, const char* name, uint32_t least, uint32_t& into) {
  const auto text = environ(name);
  if (!text.has_value()) {
    return absl::OkStatus();
  }
  const auto number = integer_in<uint32_t>(*text, least, kMaxNodes);
  if (!number.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is '%s', which is no number that Slurm would set; unset it if this is no job of Slurm", name, *text));
  }
  into = *number;
  return absl::OkStatus();
}

}  // namespace

uint16_t SlurmStep::port() const {
  uint64_t sum = 0;
  for (const char c : job + "." + step) {
    sum = sum * 31 + static_cast<unsigned char>(c);
  }
  return static_cast<uint16_t>(kFirstPort + sum % kPorts);
}

std::string SlurmStep::name() const { return absl::StrFormat("%s.%s.%d", job, step, restarts); }

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t end = list.find(']', at);
    const size_t first = list.find_first_of("-,]", at);
    if (end == std::string::npos || first == at + 1) {
      return "";
    }
    host += list.substr(at + 1, first - at - 1);
    at = end;
  }
  return host.find(']') == std::string::npos ? host : "";
}

StatusOr<std::optional<SlurmStep>> slurm_step(const Environ& environ) {
  // srun sets these; a batch script that runs keepstep directly has the job's variables, but is not a task of a step.
  const auto job = environ("SLURM_JOB_ID");
  const auto step = environ("SLURM_STEP_ID");
  const auto list = environ("SLURM_STEP_NODELIST");
  if (!job || !step || !list || job->empty() || step->empty()) {
    return std::nullopt;
  }
  SlurmStep found;
  found.job = *job;
  found.step = *step;
  KEEPSTEP_RETURN_IF_ERROR(take_number(environ, "SLURM_RESTART_COUNT", 0, found.restarts));
  KEEPSTEP_RETURN_IF_ERROR(take_number(environ, "SLURM_STEP_NUM_NODES", 1, found.nodes));
  KEEPSTEP_RETURN_IF_ERROR(take_number(environ, "SLURM_STEP_NUM_TASKS", 1, found.tasks));
  KEEPSTEP_RETURN_IF_ERROR(take_number(environ, "SLURM_NODEID", 0, found.node));
  found.first_host = first_host(*list);
  if (found.first_host.empty() || found.job.find('/') != std::string::npos ||
      found.step.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("SLURM_STEP_NODELIST is '%s' and SLURM_JOB_ID '%s', which Slurm would not set; unset them if "
                        "this is no job of Slurm",
                        *list, *job));
  }
  return found;
}

}  // namespace keepstep::cli
