#include "agent/watch/agent_faults.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace keepstep::agent {
namespace {

std::string make_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "keepstep-XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

TEST(AgentFaults, a_full_disk_refuses_writes_with_ENOSPC_until_it_is_cleared) {
  const std::string folder = make_folder();
  const Fd log(open((folder + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const std::string elsewhere = make_folder();
  const Fd other(open((elsewhere + "/log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(log.get(), "one\n", 4), 4);
  FullDisk disk;
  EXPECT_EQ(*disk.fill({"", folder}), 1u);
  EXPECT_EQ(write(log.get(), "two\n", 4), -1);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(write(other.get(), "two\n", 4), 4);  // not below the folder
  EXPECT_FALSE(disk.fill({folder}).ok());
  disk.clear();
  EXPECT_EQ(write(log.get(), "three\n", 6), 6);
  EXPECT_EQ(std::filesystem::file_size(folder + "/log"), 10u);
  const std::string empty = make_folder();
  EXPECT_FALSE(FullDisk().fill({empty}).ok());  // no file there can fail
  std::filesystem::remove_all(empty);
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(elsewhere);
}

TEST(AgentFaults, a_process_that_stops_itself_for_a_while_goes_on_by_itself) {
  const pid_t child = fork();
  if (child == 0) {
    const auto waker = stop_this_process(std::chrono::duration<double>(0.05));
    _exit(waker.ok() && waker->has_value() && waitpid(**waker, nullptr, 0) == **waker ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(AgentFaults, a_process_that_stops_itself_for_good_waits_for_somebody_else) {
  const pid_t child = fork();
  if (child == 0) {
    const auto waker = stop_this_process(std::nullopt);
    _exit(waker.ok() && !waker->has_value() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace keepstep::agent
