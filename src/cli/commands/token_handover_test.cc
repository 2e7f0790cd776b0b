#include "cli/commands/token_handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace keepstep::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenHandover : public ::testing::Test {
 protected:
  TokenHandover() {
    std::string name = (fs::temp_directory_path() / "keepstep-token-XXXXXX").string();
    top_ = mkdtemp(name.data());
    path_ = top_ / "shared" / "4711.0.0";
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  ~TokenHandover() override { fs::remove_all(top_); }
  StatusOr<JobToken> await(int timeout_ms) { return await_token(path_, milliseconds(timeout_ms), signals_, got_); }
  mode_t mode(const fs::path& path) {
    struct stat info{};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  }

  fs::path top_;
  fs::path path_;
  sigset_t signals_;
  int got_ = 0;
};

TEST_F(TokenHandover, what_node_0_leaves_another_node_finds) {
  const JobToken token = JobToken::random();
  const auto left = leave_token(path_, token);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(await(1000)->secret(), token.secret());
  EXPECT_EQ(mode(path_), 0600);
  EXPECT_EQ(mode(path_.parent_path()), 0700);
}

TEST_F(TokenHandover, a_node_that_comes_first_waits) {
  const JobToken token = JobToken::random();
  StatusOr<LeftToken> left = absl::UnknownError("");
  std::thread node_0([&] { left = leave_token(path_, token); });
  EXPECT_EQ(await(60'000)->secret(), token.secret());
  node_0.join();
}

TEST_F(TokenHandover, nothing_stays_behind) {
  {
    auto left = leave_token(path_, JobToken::random());
    const LeftToken moved = *std::move(left);
    EXPECT_TRUE(fs::exists(path_));
  }
  EXPECT_TRUE(fs::is_empty(path_.parent_path()));
}

TEST_F(TokenHandover, a_token_that_never_comes_is_said_with_where_and_how_long) {
  EXPECT_THAT(std::string(await(50).status().message()),
              AllOf(HasSubstr(path_.string()), HasSubstr("within 0.05 s"), HasSubstr("KEEPSTEP_TOKEN=$(openssl")));
}

TEST_F(TokenHandover, a_signal_ends_the_wait) {
  ASSERT_EQ(pthread_kill(pthread_self(), SIGUSR2), 0);  // blocked, so it stays pending
  EXPECT_TRUE(absl::IsCancelled(await(60'000).status()));
  EXPECT_EQ(got_, SIGUSR2);
}

TEST_F(TokenHandover, a_file_that_others_can_read_is_no_secret) {
  fs::create_directories(path_.parent_path());
  std::ofstream(path_) << "0123456789abcdef0123456789abcdef";
  chmod(path_.c_str(), 0640);
  EXPECT_TRUE(absl::IsPermissionDenied(await(1000).status()));
}

TEST_F(TokenHandover, a_link_is_not_followed) {
  const auto left = leave_token(top_ / "elsewhere" / "token", JobToken::random());
  ASSERT_TRUE(left.ok()) << left.status();
  fs::create_directories(path_.parent_path());
  fs::create_symlink(top_ / "elsewhere" / "token", path_);
  EXPECT_FALSE(await(1000).ok());
}

TEST_F(TokenHandover, no_token_is_left_where_others_may_write) {
  fs::create_directories(path_.parent_path());
  chmod(path_.parent_path().c_str(), 0777);
  const auto left = leave_token(path_, JobToken::random());
  EXPECT_TRUE(absl::IsPermissionDenied(left.status())) << left.status();
  EXPECT_TRUE(fs::is_empty(path_.parent_path()));
}

}  // namespace
}  // namespace keepstep::cli
