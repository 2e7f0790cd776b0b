#include "cli/commands/job_doors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace keepstep::cli {
namespace {

using testing::HasSubstr;

RunningJob job(const std::string& name, pid_t pid, const std::string& journal = "") {
  RunningJob running;
  running.door = {name, ""};
  running.pid = pid;
  running.description = {{"journal", journal}, {"step", 7}, {"node", 1}, {"nodes", 2}};
  return running;
}

std::string error_of(const Jobs& jobs, const std::string& word) {
  const auto chosen = choose_job(jobs, word);
  return chosen.ok() ? "" : std::string(chosen.status().message());
}

TEST(JobDoors, a_job_is_meant_by_name_pid_or_its_journals_folder) {
  const Jobs jobs{job("a", 10, "/tmp"), job("b", 11)};
  EXPECT_EQ(choose_job(jobs, "b")->pid, 11);
  EXPECT_EQ(choose_job(jobs, "10")->pid, 10);
  EXPECT_EQ(choose_job(jobs, "/usr/../tmp")->pid, 10);
  EXPECT_EQ(choose_job({job("a", 10)}, "")->pid, 10);
}

TEST(JobDoors, what_is_not_there_is_answered_with_what_is) {
  const Jobs jobs{job("a", 10), job("b", 11)};
  EXPECT_THAT(error_of(jobs, "c"), HasSubstr("no job 'c'"));
  EXPECT_THAT(error_of(jobs, "c"), HasSubstr("a (pid 10, node 1 of 2, step 7); b (pid 11"));
  EXPECT_THAT(error_of(jobs, ""), HasSubstr("Several jobs run"));
  EXPECT_THAT(error_of({}, ""), HasSubstr("No job of yours runs"));
  const Jobs nodes{job("a", 10), job("a", 11)};
  EXPECT_THAT(error_of(nodes, "a"), HasSubstr("'a' means 2 launchers; say which by its pid"));
  EXPECT_EQ(choose_job(nodes, "11")->pid, 11);
}

TEST(JobDoors, what_node_0_decides_is_asked_of_its_launcher_where_several_run_here) {
  const auto launcher = [](const std::string& name, pid_t pid, int node) {
    agent::DoorName door;
    door.job = name;
    return RunningJob{door, pid, {{"node", node}}, ""};
  };
  const Jobs jobs = {launcher("a", 1, 1), launcher("a", 2, 0), launcher("b", 3, 1)};
  const Jobs left = without_other_nodes(jobs);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(choose_job(left, "a")->pid, 2);
  EXPECT_EQ(choose_job(left, "b")->pid, 3) << "it says itself that it cannot decide";
}

}  // namespace
}  // namespace keepstep::cli
