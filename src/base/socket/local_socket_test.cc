#include "base/socket/local_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace keepstep {
namespace {

using testing::HasSubstr;

constexpr uid_t kNobody = 65534;

class LocalSocketTest : public testing::Test {
 protected:
  LocalSocketTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~LocalSocketTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/door"; }
  // Connects to path() as another user's process; returns its errno, or 0.
  int errno_of_stranger() const {
    const pid_t child = fork();
    if (child == 0) {
      const Fd fd(socket(AF_UNIX, SOCK_SEQPACKET, 0));
      sockaddr_un address{.sun_family = AF_UNIX};
      path().copy(address.sun_path, sizeof address.sun_path - 1);
      if (setgid(kNobody) != 0 || setuid(kNobody) != 0) {
        _exit(255);
      }
      const bool connected = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
      char byte = 0;
      _exit(!connected ? errno : recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 254);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
  }

  std::string folder_ = testing::TempDir() + "socket-XXXXXX";
};

TEST_F(LocalSocketTest, both_ends_know_each_other_and_talk) {
  const StatusOr<Fd> listener = listen_local(path());
  ASSERT_TRUE(listener.ok()) << listener.status();
  const StatusOr<PacketSocket> here = connect_local(path());
  ASSERT_TRUE(here.ok()) << here.status();
  const StatusOr<Accepted> there = accept_local(*listener);
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(there->peer.pid, getpid());
  EXPECT_EQ(there->peer.uid, geteuid());
  ASSERT_TRUE(here->send("hello").ok());
  EXPECT_EQ(there->socket.receive()->bytes, "hello");
}

TEST_F(LocalSocketTest, a_path_may_be_long_but_not_the_name_at_its_end) {
  std::string deep = folder_;
  while (deep.size() < 500) {
    deep += "/" + std::string(50, 'd');
    ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
  }
  const StatusOr<Fd> listener = listen_local(deep + "/door");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(connect_local(deep + "/door").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(listen_local(folder_ + "/" + std::string(100, 'x')).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(listen_local(folder_ + "/").status()));
}

TEST_F(LocalSocketTest, who_is_not_there_and_who_is_there_already_are_told_apart) {
  EXPECT_TRUE(absl::IsNotFound(connect_local(path()).status()));
  {
    const StatusOr<Fd> listener = listen_local(path());
    EXPECT_TRUE(absl::IsAlreadyExists(listen_local(path()).status()));
  }
  EXPECT_TRUE(absl::IsNotFound(connect_local(path()).status())) << "its file is all that is left";
}

TEST_F(LocalSocketTest, there_is_none_in_a_folder_that_others_may_enter) {
  for (const mode_t mode : {0710, 0701, 0777}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    EXPECT_TRUE(absl::IsPermissionDenied(listen_local(path()).status())) << mode;
    EXPECT_TRUE(absl::IsPermissionDenied(connect_local(path()).status())) << mode;
  }
}

TEST_F(LocalSocketTest, another_user_reaches_no_socket_and_is_refused_where_it_would) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const StatusOr<Fd> listener = listen_local(path());
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(errno_of_stranger(), EACCES);
  // The folder alone would keep it out, so it is opened here to check that the kernel is asked, too.
  ASSERT_EQ(chmod(folder_.c_str(), 0711), 0);
  ASSERT_EQ(chmod(path().c_str(), 0777), 0);
  std::thread refusing([&] {
    const StatusOr<Accepted> accepted = accept_local(*listener);
    EXPECT_TRUE(absl::IsPermissionDenied(accepted.status()));
    EXPECT_THAT(std::string(accepted.status().message()), HasSubstr("of user 65534: refused"));
  });
  EXPECT_EQ(errno_of_stranger(), 0) << "it connects, and hears nothing but the end";
  refusing.join();
}

}  // namespace
}  // namespace keepstep
