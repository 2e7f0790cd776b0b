#include "base/runtime_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/runtime_folder_testing.h"
#include "base/socket/local_socket.h"

namespace keepstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uid_t kNobody = 65534;

class RuntimeFolderTest : public testing::Test {
 protected:
  // A process that holds `name` and listens, until it is killed.
  static pid_t holder(const std::string& name) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto held = HeldName::take(name);
      const auto listener = held.ok() ? listen_local(held->path()) : StatusOr<Fd>(held.status());
      (void)!write(pipe[1], listener.ok() ? "y" : "n", 1);
      pause();
      _exit(0);
    }
    close(pipe[1]);
    char listens = 0;
    EXPECT_EQ(read(pipe[0], &listens, 1), 1);
    EXPECT_EQ(listens, 'y');
    close(pipe[0]);
    return child;
  }
  static void end(pid_t child) {
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }

  // Ignores the names of jobs that run at the same time as this test.
  std::vector<std::string> names_held_here(const std::string& prefix) const {
    std::vector<std::string> names = names_held(prefix);
    std::erase_if(names, [this](const std::string& path) { return !path.starts_with(own_.path()); });
    return names;
  }

  OwnRuntimeFolder own_;
};

TEST_F(RuntimeFolderTest, a_name_is_held_by_one_found_by_all_and_leaves_nothing) {
  {
    const auto held = HeldName::take("job-a-1");
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(held->path(), own_.names() / "job-a-1");
    EXPECT_TRUE(held->found());
    EXPECT_TRUE(absl::IsAlreadyExists(HeldName::take("job-a-1").status()));
    const auto other = HeldName::take("node-b");
    const auto first = listen_local(held->path());
    const auto second = listen_local(held->path() + "+more");
    EXPECT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    EXPECT_THAT(names_held_here("job-"), ElementsAre((own_.names() / "job-a-1").string()));
    EXPECT_THAT(runtime_folders().front(), own_.names().string());
    struct stat made{};
    ASSERT_EQ(stat(own_.names().c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 07777, 0700U);
  }
  EXPECT_TRUE(own_.empty());
}

TEST_F(RuntimeFolderTest, what_a_killed_process_leaves_goes_with_the_next_look) {
  const pid_t first = holder("node-a");
  const pid_t second = holder("node-b");
  EXPECT_TRUE(absl::IsAlreadyExists(HeldName::take("node-a").status()));
  end(first);
  EXPECT_TRUE(std::filesystem::exists(own_.names() / "node-a"));
  EXPECT_THAT(names_held_here(""), ElementsAre((own_.names() / "node-b").string()));
  EXPECT_FALSE(std::filesystem::exists(own_.names() / "node-a"));
  for (const auto& left : std::filesystem::directory_iterator(own_.names())) {
    EXPECT_FALSE(left.path().filename().string().starts_with("node-a")) << left.path();
  }
  end(second);
  const auto taken = HeldName::take("node-b");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE(listen_local(taken->path()).ok()) << "the dead one's socket is gone";
}

TEST_F(RuntimeFolderTest, however_many_look_and_take_at_once_a_name_has_one_holder) {
  std::atomic<int> holders = 0;
  std::atomic<int> most = 0;
  std::atomic<int> times = 0;
  std::vector<std::thread> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        const auto held = HeldName::take("one");
        if (held.ok()) {
          most = std::max(most.load(), ++holders);
          ++times;
          const auto listener = listen_local(held->path());
          EXPECT_TRUE(listener.ok()) << listener.status();
          EXPECT_TRUE(connect_local(held->path()).ok());
          --holders;
        } else {
          EXPECT_TRUE(absl::IsAlreadyExists(held.status())) << held.status();
          (void)names_held("");
        }
      }
    });
  }
  for (std::thread& each : all) {
    each.join();
  }
  EXPECT_EQ(most, 1);
  EXPECT_GT(times, 0);
  EXPECT_TRUE(own_.empty());
}

TEST_F(RuntimeFolderTest, a_name_whose_files_somebody_removed_is_found_no_more) {
  const auto held = HeldName::take("job-a");
  ASSERT_TRUE(held.ok()) << held.status();
  std::filesystem::remove_all(own_.names());
  EXPECT_FALSE(held->found());
  const auto again = HeldName::take("job-a");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(held->found()) << "it is another one's now";
  EXPECT_TRUE(again->found());
}

TEST_F(RuntimeFolderTest, a_folder_that_others_may_enter_or_own_is_passed_over) {
  std::filesystem::create_directory(own_.names());
  ASSERT_EQ(chmod(own_.names().c_str(), 0755), 0);
  EXPECT_THAT(runtime_folders(), testing::Not(testing::Contains(own_.names().string())));
  ASSERT_EQ(chmod(own_.names().c_str(), 0700), 0);
  ASSERT_EQ(chmod(own_.path().c_str(), 0777), 0);
  EXPECT_THAT(runtime_folders(), testing::Not(testing::Contains(own_.names().string())));
  ASSERT_EQ(chmod(own_.path().c_str(), 0700), 0);
  EXPECT_EQ(runtime_folders().front(), own_.names().string());
  if (geteuid() == 0) {
    ASSERT_EQ(chown(own_.names().c_str(), kNobody, kNobody), 0);
    EXPECT_THAT(runtime_folders(), testing::Not(testing::Contains(own_.names().string())));
  }
}

// One shell has the variable and the other does not: each takes names in its own folder, and both find all names.
TEST_F(RuntimeFolderTest, shells_with_and_without_the_variable_find_each_other) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can be a user who has nothing in /run and /tmp";
  }
  constexpr uid_t kUser = 60'124;
  ASSERT_EQ(chown(own_.path().c_str(), kUser, kUser), 0);
  const std::string last = absl::StrFormat("/tmp/keepstep-%d", kUser);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(kUser) != 0) {
      _exit(2);
    }
    const auto with = HeldName::take("job-with");
    const std::string variable = own_.path();
    unsetenv("XDG_RUNTIME_DIR");
    const auto without = HeldName::take("job-without");
    const bool apart = with.ok() && without.ok() && with->path() == own_.names() / "job-with" &&
                       without->path() == last + "/job-without";
    setenv("XDG_RUNTIME_DIR", variable.c_str(), 1);
    const bool one_each = absl::IsAlreadyExists(HeldName::take("job-without").status());
    _exit(apart && one_each && names_held("job-") == std::vector{with->path(), without->path()} ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  std::filesystem::remove_all(last);
  EXPECT_EQ(status, 0);
}

// Root plays the other user: it takes the folder name in /tmp of a user who has no other folder.
TEST_F(RuntimeFolderTest, where_somebody_else_took_the_last_folder_the_error_says_what_to_do) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  constexpr uid_t kUser = 60'123;
  const std::string squatted = absl::StrFormat("/tmp/keepstep-%d", kUser);
  ASSERT_TRUE(std::filesystem::create_directory(squatted));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("XDG_RUNTIME_DIR");
    const std::string said = setuid(kUser) == 0 ? std::string(HeldName::take("job-a").status().message()) : "";
    (void)!write(pipe[1], said.data(), said.size());
    _exit(names_held("").empty() ? 0 : 1);
  }
  close(pipe[1]);
  char text[4096] = {};
  EXPECT_GT(read(pipe[0], text, sizeof text - 1), 0);
  close(pipe[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  std::filesystem::remove_all(squatted);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(text, HasSubstr(squatted + "' belongs to another user (uid 0)"));
  EXPECT_THAT(text, HasSubstr("Set XDG_RUNTIME_DIR"));
}

// On a network file system this machine may get a lock that a process on another machine holds.
TEST_F(RuntimeFolderTest, names_of_another_machine_in_a_shared_folder_are_left_alone) {
  const auto mine = HeldName::take("job-here");
  ASSERT_TRUE(mine.ok()) << mine.status();
  for (const char* file : {"job-there", "job-there+lock-0123456789abcdef"}) {
    std::ofstream(own_.names() / file) << "";
  }
  EXPECT_THAT(names_held_here(""), ElementsAre(mine->path()));
  EXPECT_TRUE(std::filesystem::exists(own_.names() / "job-there"));
  EXPECT_TRUE(std::filesystem::exists(own_.names() / "job-there+lock-0123456789abcdef"));
}

TEST_F(RuntimeFolderTest, what_is_no_name_is_refused) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a+lock"), std::string(101, 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HeldName::take(name).status())) << name;
  }
  EXPECT_THAT(names_held_here(""), IsEmpty());
}

TEST_F(RuntimeFolderTest, a_network_namespace_of_its_own_is_another_machine) {
  const std::string here = this_machine();
  EXPECT_EQ(here, this_machine());
  EXPECT_EQ(here.size(), 16u);
  const pid_t child = fork();
  if (child == 0) {
    _exit(unshare(CLONE_NEWNET) != 0 ? 2 : this_machine() != here ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "this user can make no network namespace";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace keepstep
