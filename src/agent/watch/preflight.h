// Checks before training starts, so that a full machine is an error message now and not a crash later.
//
// Reads limits and files of this machine. It changes two things: it raises the soft limit on open files up to the hard
// one, and creates the log and journal directories. Call once, before workers are started.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "agent/job/job_spec.h"

namespace keepstep::agent {

struct PreflightReport {
  std::vector<std::string> errors;    // all of them; if any, the job must not start
  std::vector<std::string> warnings;  // to be shown
  bool ok() const { return errors.empty(); }
};

// What the machine offers. Returned by read_machine(); tests make their own.
struct Machine {
  uint64_t open_files_soft = 0;  // RLIMIT_NOFILE, after raising
  uint64_t open_files_hard = 0;
  uint64_t open_files_used = 0;  // by this process, now
  // The minimum of MemAvailable and what the memory cgroups leave.
  uint64_t memory_available_bytes = std::numeric_limits<uint64_t>::max();
  bool has_dev_shm = true;
  uint64_t dev_shm_free_bytes = 0;
};

// Descriptors this process needs for the job: pipes, sockets, pages and pidfds of every rank and spare, and those of a
// generation that is being replaced.
uint64_t open_files_needed(const JobSpec& spec);

// Raises the soft limit on open files, for this process and all it starts, to 65536 or to `needed`, if the hard limit
// allows it. Then reads the machine's numbers.
Machine read_machine(uint64_t needed);

// The checks that need only numbers. `shared_bytes`: shared memory of all workers of the job together.
PreflightReport check_open_files(const JobSpec& spec, const Machine& machine);
PreflightReport check_memory(const JobSpec& spec, const Machine& machine, uint64_t shared_bytes);
PreflightReport check_dev_shm(const Machine& machine);
// All three.
PreflightReport check_machine(const JobSpec& spec, const Machine& machine, uint64_t shared_bytes);

// All checks: the machine's numbers; the master port, if one was given; that the log and journal directories are
// writable; that the interpreter and the script exist.
PreflightReport preflight(const JobSpec& spec, uint64_t shared_bytes);

}  // namespace keepstep::agent
