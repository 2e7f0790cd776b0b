// What Slurm reports about the step in which srun started this launcher. Pure: the environment is passed in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

struct SlurmStep {
  std::string job;         // SLURM_JOB_ID
  std::string step;        // SLURM_STEP_ID
  uint32_t restarts = 0;   // how many times the job was requeued: SLURM_RESTART_COUNT
  uint32_t nodes = 1;      // of the step
  uint32_t tasks = 1;      // of the step
  uint32_t node = 0;       // this node's number in the step: SLURM_NODEID
  std::string first_host;  // of the step's nodes
  bool operator==(const SlurmStep&) const = default;

  // A port for this step's coordinator, the same on all nodes: 20000 to 29999. It is not secret, and need not be free:
  // if it is taken, node 0 reports it.
  uint16_t port() const;
  // Distinguishes this start of the step from all others in the cluster: "42.0.1".
  std::string name() const;
};

// std::nullopt if srun did not start this process (it is the batch script itself, or there is no Slurm).
// INVALID_ARGUMENT, naming them: Slurm's variables make no sense.
StatusOr<std::optional<SlurmStep>> slurm_step(const Environ& environ);

// The first host of a Slurm list: "n1" of "n[1-3,7],m5", "rack0n00" of "rack[0-1]n[00-03]". Empty: it is not such a
// list.
std::string first_host(const std::string& list);

}  // namespace keepstep::cli
