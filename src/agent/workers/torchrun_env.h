// The environment variables of a worker, with the names and values that torchrun (torch 2.15) uses.
//
// There are two parts, because a keepstep worker starts before it has a rank: what is the same for the whole job is set
// when the process starts; what needs a rank is set when it gets one (RANK is unset until then).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/job/job_spec.h"

namespace keepstep::agent {

using Environment = std::vector<std::pair<std::string, std::string>>;

struct RankAssignment {
  uint32_t rank = 0;
  uint32_t local_rank = 0;   // on its node
  uint32_t group_rank = 0;   // of its node, in rank order: a spare node takes the number of the one it replaces
  uint32_t world = 1;        // ranks; changes in an elastic job
  uint32_t local_world = 1;  // on its node
  uint32_t groups = 1;       // nodes with ranks
  uint32_t generation = 1;   // from 1
  uint32_t restarts = 0;     // faults so far: torchrun's restart count
  std::string master_addr;   // where rank 0 listens in this generation, for init_process_group("env://")
  uint16_t master_port = 0;
};

// Known before a rank: WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_* (GROUP_RANK unless there are spare nodes), ROLE_NAME,
// ROLE_WORLD_SIZE (an elastic job has no sizes here), TORCHELASTIC_* of the job. `has_omp_num_threads`: the launcher's
// environment sets OMP_NUM_THREADS, so torchrun's default of 1 for several workers is not added.
// TORCH_NCCL_ASYNC_ERROR_HANDLING is added unless this process has it.
Environment job_environment(const JobSpec& spec, bool has_omp_num_threads);

// Needs a rank: RANK, LOCAL_RANK, ROLE_RANK, GROUP_RANK with spare nodes, the sizes of an elastic job, MASTER_ADDR,
// MASTER_PORT, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_ERROR_FILE (empty without a log directory). Everything that
// changes with the generation is here.
Environment rank_environment(const JobSpec& spec, const RankAssignment& assignment);

}  // namespace keepstep::agent
