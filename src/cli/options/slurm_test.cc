#include "cli/options/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace keepstep::cli {
namespace {

using ::testing::HasSubstr;

StatusOr<std::optional<SlurmStep>> read(std::map<std::string, std::string> changed) {
  // As set by srun of Slurm 22.05.
  std::map<std::string, std::string> values = {
      {"SLURM_JOB_ID", "4711"},      {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[07-08]"},
      {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NODEID", "1"},
  };
  for (const auto& [name, value] : changed) {
    values[name] = value;
  }
  return slurm_step([values](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    return it == values.end() || it->second == "unset" ? std::nullopt : std::optional(it->second);
  });
}

TEST(Slurm, the_first_host_of_a_list) {
  EXPECT_EQ(first_host("n1"), "n1");
  EXPECT_EQ(first_host("n1,n2"), "n1");
  EXPECT_EQ(first_host("n[1-3,7],m5"), "n1");
  EXPECT_EQ(first_host("n[007,9]"), "n007");
  EXPECT_EQ(first_host("rack[0-1]n[00-03]x"), "rack0n00x");
  EXPECT_EQ(first_host("127.0.0.[1-2]"), "127.0.0.1");
}

TEST(Slurm, what_is_no_list_has_no_first_host) {
  for (const char* text : {"", ",n1", "n[1-3", "n[]", "n[-3]", "n]"}) {
    EXPECT_EQ(first_host(text), "") << text;
  }
}

TEST(Slurm, a_task_of_srun_knows_its_place) {
  const auto step = read({});
  ASSERT_TRUE(step.ok() && step->has_value());
  EXPECT_EQ((*step)->nodes, 2u);
  EXPECT_EQ((*step)->node, 1u);
  EXPECT_EQ((*step)->first_host, "n07");
  EXPECT_EQ((*step)->name(), "4711.0.0");
}

TEST(Slurm, a_requeued_job_is_another_start_and_meets_at_the_same_port) {
  const auto first = read({});
  const auto second = read({{"SLURM_RESTART_COUNT", "2"}});
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->name(), "4711.0.2");
  EXPECT_EQ((*second)->port(), (*first)->port());
  EXPECT_GE((*second)->port(), 20000);
  EXPECT_LT((*second)->port(), 30000);
  EXPECT_NE((*read({{"SLURM_STEP_ID", "1"}}))->port(), (*first)->port());
}

TEST(Slurm, a_batch_script_itself_is_no_step) {
  EXPECT_EQ(*read({{"SLURM_STEP_ID", "unset"}}), std::nullopt);
  EXPECT_EQ(*read({{"SLURM_STEP_NODELIST", "unset"}}), std::nullopt);
  EXPECT_EQ(*read({{"SLURM_JOB_ID", "unset"}}), std::nullopt);
}

TEST(Slurm, variables_that_make_no_sense_are_named) {
  EXPECT_THAT(std::string(read({{"SLURM_NODEID", "x"}}).status().message()), HasSubstr("SLURM_NODEID is 'x'"));
  EXPECT_THAT(std::string(read({{"SLURM_STEP_NUM_NODES", "0"}}).status().message()),
              HasSubstr("SLURM_STEP_NUM_NODES is '0'"));
  EXPECT_THAT(std::string(read({{"SLURM_STEP_NODELIST", "n["}}).status().message()), HasSubstr("is 'n['"));
  EXPECT_THAT(std::string(read({{"SLURM_JOB_ID", "../../etc"}}).status().message()), HasSubstr("../../etc"));
}

}  // namespace
}  // namespace keepstep::cli
