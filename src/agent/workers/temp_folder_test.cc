#include "agent/workers/temp_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace keepstep::agent {
namespace {

namespace fs = std::filesystem;

TEST(TempFolder, a_workers_folder_goes_with_it_and_what_a_link_in_it_names_stays) {
  TempFolder outside = *TempFolder::create();
  std::ofstream(outside.path() / "theirs") << "kept";
  fs::path path;
  {
    TempFolder folder = *TempFolder::create();
    path = folder.path();
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directories(path / "3" / "inside");
    fs::create_directories(path / "4");
    fs::create_directory_symlink(outside.path(), path / "3" / "link");
    folder.remove(3);
    EXPECT_FALSE(fs::exists(path / "3"));
    EXPECT_TRUE(fs::exists(path / "4"));
    folder.remove(5);  // worker 5 never made one
    const TempFolder moved = std::move(folder);
    EXPECT_TRUE(fs::exists(path / "4"));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(outside.path() / "theirs"));
  TempFolder().remove(1);
}

TEST(TempFolder, what_a_killed_launcher_left_goes_when_another_one_starts_and_nothing_else_does) {
  const std::string own = testing::TempDir() + "temp-" + std::to_string(getpid());
  fs::create_directories(own + "/keepstep-backup");  // a name like ours
  fs::permissions(own + "/keepstep-backup", fs::perms::owner_all);
  setenv("TMPDIR", own.c_str(), 1);
  const TempFolder living = *TempFolder::create();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = fork();
  if (child == 0) {
    const TempFolder left = *TempFolder::create();
    std::ofstream(left.path() / "rings") << "a socket";
    (void)!write(pipe[1], left.path().c_str(), left.path().native().size());
    pause();
    _exit(0);
  }
  char text[1000] = {};
  ASSERT_GT(read(pipe[0], text, sizeof text - 1), 0);
  EXPECT_TRUE(fs::exists(TempFolder::create()->path().parent_path()));
  EXPECT_TRUE(fs::exists(text)) << "it lives";
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const TempFolder next = *TempFolder::create();
  EXPECT_FALSE(fs::exists(text));
  EXPECT_TRUE(fs::exists(living.path()));
  EXPECT_TRUE(fs::exists(own + "/keepstep-backup"));
  unsetenv("TMPDIR");
  fs::remove_all(own);
}

}  // namespace
}  // namespace keepstep::agent
