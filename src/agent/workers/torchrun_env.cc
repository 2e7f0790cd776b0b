#include "agent/workers/torchrun_env.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "agent/workers/output_pump.h"
#include "base/check.h"
#include "base/log.h"
#include "base/private_folder.h"

namespace keepstep::agent {
namespace {

// Like Python's getpass.getuser(), made fit for a file name as torch does.
std::string user_name() {
  std::string name = std::to_string(getuid());
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr) {
    name = entry->pw_name;
  }
  for (const char* variable : {"USERNAME", "LNAME", "USER", "LOGNAME"}) {  // the last one has priority
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') {
      name = value;
    }
  }
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::string("\\/:*?\"<>|").find(c) != std::string::npos; }, '_');
  return name;
}

// Sets where compiled code is cached: what one process of this node compiled, its spares and replacements need not
// compile again. The default is torch's own location, so that existing code is used. It is set explicitly for all,
// since a process with another TMPDIR or HOME would otherwise have a location of its own. Code from it is run, so it
// must belong to this user: the name of torch's location is easy to guess, and another user who creates it first could
// put anything there.
void add_compile_caches(Environment& environment) {
  std::string folder;
  if (const char* given = std::getenv("TORCHINDUCTOR_CACHE_DIR"); given != nullptr) {
    folder = given;
  } else {
    std::error_code none;
    std::vector<std::string> candidates = {std::filesystem::temp_directory_path(none).string() + "/torchinductor_" +
                                           user_name()};
    if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
      candidates.push_back(std::string(home) + "/.keepstep-compiled");
    }
    std::string warning;
    folder = private_folder(candidates, &warning);
    if (!warning.empty()) {
      spdlog::warn("code that torch compiles is kept in '{}': {}", folder, warning);
    }
    if (!folder.empty()) {
      environment.emplace_back("TORCHINDUCTOR_CACHE_DIR", folder);
    }
  }
  if (std::getenv("TRITON_CACHE_DIR") == nullptr && !folder.empty()) {
    environment.emplace_back("TRITON_CACHE_DIR", folder + "/triton");
  }
}

void add_sizes(Environment& environment, uint32_t world, uint32_t local_world, uint32_t groups) {
  environment.emplace_back("WORLD_SIZE", std::to_string(world));
  environment.emplace_back("ROLE_WORLD_SIZE", std::to_string(world));
  environment.emplace_back("LOCAL_WORLD_SIZE", std::to_string(local_world));
  environment.emplace_back("GROUP_WORLD_SIZE", std::to_string(groups));
}

// Whether a node may take the place of another.
bool node_ranks_move(const JobSpec& spec) { return spec.spare_nodes > 0 || spec.elastic.has_value(); }

}  // namespace

Environment job_environment(const JobSpec& spec, bool has_omp_num_threads) {
  Environment result = {
      {"ROLE_NAME", spec.role},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(spec.max_restarts)},
      {"TORCHELASTIC_RUN_ID", spec.run_id},
      // "True" would tell rank 0 that somebody else already serves a TCPStore at MASTER_PORT.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
  if (!spec.elastic) {
    add_sizes(result, spec.world_size(), spec.nproc_per_node, spec.nnodes);
  }
  if (!node_ranks_move(spec)) {
    result.emplace_back("GROUP_RANK", std::to_string(spec.node_rank));
  }
  if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr) {
    result.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  }
  add_compile_caches(result);
  if (!has_omp_num_threads && spec.nproc_per_node > 1) {
    result.emplace_back("OMP_NUM_THREADS", "1");
  }
  return result;
}

Environment rank_environment(const JobSpec& spec, const RankAssignment& assignment) {
  KEEPSTEP_CHECK(assignment.generation >= 1, "generations count from 1");
  const std::string rank = std::to_string(assignment.rank);
  const std::string folder = log_folder(spec, assignment.local_rank, assignment.generation);
  Environment result = {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(assignment.local_rank)},
      {"ROLE_RANK", rank},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", std::to_string(assignment.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(assignment.restarts)},
      {"TORCHELASTIC_ERROR_FILE", folder.empty() ? "" : folder + "/error.json"},
  };
  if (spec.elastic) {
    add_sizes(result, assignment.world, assignment.local_world, assignment.groups);
  }
  if (node_ranks_move(spec)) {
    result.emplace_back("GROUP_RANK", std::to_string(assignment.group_rank));
  }
  return result;
}

}  // namespace keepstep::agent
