#include "agent/workers/torchrun_env.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

namespace keepstep::agent {
namespace {

std::map<std::string, std::string> as_map(const Environment& environment) {
  std::map<std::string, std::string> result(environment.begin(), environment.end());
  EXPECT_EQ(result.size(), environment.size()) << "a variable is set twice";
  return result;
}

JobSpec four_ranks() {
  JobSpec spec;
  spec.nproc_per_node = 4;
  spec.run_id = "job7";
  spec.max_restarts = 2;
  return spec;
}

TEST(TorchrunEnv, what_holds_for_the_job_names_the_world_and_no_rank) {
  const auto env = as_map(job_environment(four_ranks(), false));
  EXPECT_EQ(env.at("WORLD_SIZE"), "4");
  EXPECT_EQ(env.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(env.at("ROLE_WORLD_SIZE"), "4");
  EXPECT_EQ(env.at("ROLE_NAME"), "default");
  EXPECT_EQ(env.at("GROUP_RANK"), "0");
  EXPECT_EQ(env.at("GROUP_WORLD_SIZE"), "1");
  EXPECT_EQ(env.at("TORCHELASTIC_RUN_ID"), "job7");
  EXPECT_EQ(env.at("TORCHELASTIC_MAX_RESTARTS"), "2");
  EXPECT_EQ(env.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_FALSE(env.contains("RANK"));
  EXPECT_FALSE(env.contains("LOCAL_RANK"));
}

TEST(TorchrunEnv, a_rank_gets_what_torchrun_would_give_it) {
  const auto env = as_map(rank_environment(
      four_ranks(),
      {.rank = 3, .local_rank = 3, .generation = 3, .restarts = 1, .master_addr = "127.0.0.1", .master_port = 29500}));
  EXPECT_EQ(env.at("RANK"), "3");
  EXPECT_EQ(env.at("LOCAL_RANK"), "3");
  EXPECT_EQ(env.at("ROLE_RANK"), "3");
  EXPECT_EQ(env.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(env.at("MASTER_PORT"), "29500");
  EXPECT_EQ(env.at("TORCHELASTIC_RESTART_COUNT"), "1");
  EXPECT_EQ(env.at("TORCHELASTIC_ERROR_FILE"), "");
}

TEST(TorchrunEnv, several_nodes_have_one_world_and_each_its_own_local_ranks) {
  JobSpec spec = four_ranks();
  spec.nnodes = 3;
  spec.node_rank = 2;
  const auto job = as_map(job_environment(spec, false));
  EXPECT_EQ(job.at("WORLD_SIZE"), "12");
  EXPECT_EQ(job.at("ROLE_WORLD_SIZE"), "12");
  EXPECT_EQ(job.at("LOCAL_WORLD_SIZE"), "4");
  EXPECT_EQ(job.at("GROUP_WORLD_SIZE"), "3");
  EXPECT_EQ(job.at("GROUP_RANK"), "2");
  const auto env = as_map(rank_environment(spec, {.rank = 9, .local_rank = 1, .group_rank = 2}));
  EXPECT_EQ(env.at("RANK"), "9");
  EXPECT_EQ(env.at("ROLE_RANK"), "9");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
}

TEST(TorchrunEnv, a_node_that_may_take_anothers_place_has_its_group_rank_with_its_ranks) {
  JobSpec spec = four_ranks();
  spec.nnodes = 2;
  spec.spare_nodes = 1;
  spec.node_rank = 2;
  EXPECT_FALSE(as_map(job_environment(spec, false)).contains("GROUP_RANK"));
  EXPECT_EQ(as_map(rank_environment(spec, {.rank = 4, .group_rank = 1})).at("GROUP_RANK"), "1");
}

TEST(TorchrunEnv, job_and_rank_together_are_torchruns_variables_and_none_twice) {
  Environment all = job_environment(four_ranks(), false);
  for (const auto& variable : rank_environment(four_ranks(), {})) {
    all.push_back(variable);
  }
  const auto env = as_map(all);
  for (const char* name :
       {"RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "LOCAL_RANK", "TORCHELASTIC_ERROR_FILE"}) {
    EXPECT_TRUE(env.contains(name)) << name;
  }
}

TEST(TorchrunEnv, compiled_code_has_one_place_on_a_node_unless_the_user_named_another) {
  unsetenv("TORCHINDUCTOR_CACHE_DIR");
  unsetenv("TRITON_CACHE_DIR");
  std::string folder = ::testing::TempDir() + "caches-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("TMPDIR", folder.c_str(), 1);
  setenv("LOGNAME", "lab\\ann", 1);
  auto env = as_map(job_environment(four_ranks(), false));
  EXPECT_EQ(env.at("TORCHINDUCTOR_CACHE_DIR"), folder + "/torchinductor_lab_ann");
  EXPECT_EQ(env.at("TRITON_CACHE_DIR"), folder + "/torchinductor_lab_ann/triton");
  struct stat made{};
  ASSERT_EQ(stat((folder + "/torchinductor_lab_ann").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0700U);
  // Somebody who knows the name may have created it first, writable for all.
  ASSERT_EQ(chmod((folder + "/torchinductor_lab_ann").c_str(), 0777), 0);
  setenv("HOME", folder.c_str(), 1);
  env = as_map(job_environment(four_ranks(), false));
  EXPECT_EQ(env.at("TORCHINDUCTOR_CACHE_DIR"), folder + "/.keepstep-compiled");
  setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/mine", 1);
  env = as_map(job_environment(four_ranks(), false));
  EXPECT_FALSE(env.contains("TORCHINDUCTOR_CACHE_DIR"));
  EXPECT_EQ(env.at("TRITON_CACHE_DIR"), "/scratch/mine/triton");
  setenv("TRITON_CACHE_DIR", "/scratch/triton", 1);
  EXPECT_FALSE(as_map(job_environment(four_ranks(), false)).contains("TRITON_CACHE_DIR"));
  unsetenv("TORCHINDUCTOR_CACHE_DIR");
  unsetenv("TRITON_CACHE_DIR");
  unsetenv("LOGNAME");
  unsetenv("TMPDIR");
  std::filesystem::remove_all(folder);
}

TEST(TorchrunEnv, error_files_lie_beside_the_logs_of_rank_and_generation) {
  JobSpec spec = four_ranks();
  spec.log_dir = "/logs";
  EXPECT_EQ(as_map(rank_environment(spec, {.rank = 1, .local_rank = 1, .generation = 5})).at("TORCHELASTIC_ERROR_FILE"),
            "/logs/job7/attempt_5/1/error.json");
}

TEST(TorchrunEnv, one_thread_each_by_default_only_where_several_ranks_share_the_machine_and_nobody_said_otherwise) {
  EXPECT_EQ(as_map(job_environment(four_ranks(), false)).at("OMP_NUM_THREADS"), "1");
  EXPECT_FALSE(as_map(job_environment(four_ranks(), true)).contains("OMP_NUM_THREADS"));
  EXPECT_FALSE(as_map(job_environment(JobSpec{}, false)).contains("OMP_NUM_THREADS"));
}

TEST(TorchrunEnv, a_users_nccl_error_handling_is_kept) {
  unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  EXPECT_EQ(as_map(job_environment(four_ranks(), true)).at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", 1);
  EXPECT_FALSE(as_map(job_environment(four_ranks(), true)).contains("TORCH_NCCL_ASYNC_ERROR_HANDLING"));
  unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
}

}  // namespace
}  // namespace keepstep::agent
