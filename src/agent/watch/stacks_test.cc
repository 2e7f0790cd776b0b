#include "agent/watch/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "agent/loop/timer.h"

namespace keepstep::agent {
namespace {

using testing::HasSubstr;

// Programs in place of py-spy, for everything it may do to us. test_control.py of tests/integration/launch uses the
// real one.
class StacksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (std::filesystem::temp_directory_path() / "keepstep-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // `body` sees the arguments "dump --json --pid PID [--native]" as $1 to $5.
  std::string program(const std::string& body) {
    const std::string path = folder_ / "py-spy";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  static std::vector<ProcessStacks> take(const std::string& program, const std::vector<pid_t>& pids,
                                         const StackLimits& limits = {}) {
    auto loop = *EventLoop::create();
    std::vector<ProcessStacks> taken;
    take_stacks(*loop, program, pids, limits, [&](std::vector<ProcessStacks> stacks) {
      taken = std::move(stacks);
      loop->stop();
    });
    loop->run();
    return taken;
  }

  std::filesystem::path folder_;
};

constexpr const char* kOneFrame =
    R"(echo '[{"os_thread_id": '$4', "frames": [{"name": "f", "filename": "a.py", "line": '$4'}]}]')";

TEST_F(StacksTest, each_process_gets_its_own_stacks_in_the_order_asked_for) {
  const auto taken = take(program(kOneFrame), {31, 7, 19, 3, 2, 1});
  ASSERT_EQ(taken.size(), 6u);
  for (const ProcessStacks& each : taken) {
    EXPECT_EQ(each.error, "");
    ASSERT_EQ(each.threads.size(), 1u);
    EXPECT_EQ(each.threads[0].frames[0].line, each.pid);
  }
  EXPECT_EQ(taken[1].pid, 7);
  EXPECT_TRUE(take(program(kOneFrame), {}).empty());
}

TEST_F(StacksTest, one_that_never_ends_is_ended_and_the_others_are_there) {
  StackLimits limits;
  limits.time = std::chrono::milliseconds(300);
  const auto taken = take(program(absl::StrFormat("[ $4 = 7 ] && exec sleep 1000\n%s", kOneFrame)), {7, 8}, limits);
  EXPECT_THAT(taken[0].error, HasSubstr("py-spy took more than 0.3 s"));
  EXPECT_EQ(taken[1].threads.size(), 1u);
}

TEST_F(StacksTest, where_native_frames_cannot_be_had_there_are_those_of_python) {
  StackLimits limits;
  limits.native = true;
  const auto taken = take(program(absl::StrFormat("[ -n \"$5\" ] && { echo no symbols >&2; exit 1; }\n%s", kOneFrame)),
                          {getpid()}, limits);
  EXPECT_EQ(taken[0].error, "");
  EXPECT_EQ(taken[0].note, "without native frames: no symbols");
  EXPECT_EQ(taken[0].threads.size(), 1u);
}

TEST_F(StacksTest, why_there_are_none_is_said_with_the_way_out) {
  EXPECT_THAT(take(program("echo 'Permission Denied: Try running again' >&2; exit 1"), {getpid()})[0].error,
              HasSubstr("CAP_SYS_PTRACE"));
  EXPECT_THAT(take(program("echo rubbish"), {getpid()})[0].error, HasSubstr("no list of threads"));
  EXPECT_THAT(take(program("exit 1"), {getpid()})[0].error, HasSubstr("without a word"));
  EXPECT_THAT(take(folder_ / "absent", {getpid()})[0].error, HasSubstr("No such file"));
  StackLimits limits;
  limits.bytes = 1000;
  EXPECT_THAT(take(program("head -c 1000000 /dev/zero"), {getpid()}, limits)[0].error,
              HasSubstr("more than 1000 bytes"));
}

TEST_F(StacksTest, py_spy_is_found_beside_the_interpreter_and_its_absence_says_how_to_install_it) {
  program("true");
  EXPECT_EQ(*find_py_spy(folder_ / "python"), folder_ / "py-spy");
  setenv("KEEPSTEP_PY_SPY", "/no/such", 1);
  EXPECT_THAT(std::string(find_py_spy("/usr/bin/python").status().message()), HasSubstr("KEEPSTEP_PY_SPY"));
  unsetenv("KEEPSTEP_PY_SPY");
  const std::string path = getenv("PATH");
  setenv("PATH", "", 1);
  EXPECT_THAT(std::string(find_py_spy("/no/python").status().message()), HasSubstr("-m pip install py-spy"));
  setenv("PATH", path.c_str(), 1);
}

TEST(Timer, a_timer_calls_once_and_one_that_is_gone_does_not) {
  auto loop = *EventLoop::create();
  int calls = 0;
  const auto never = [&] { FAIL() << "it was cancelled"; };
  {
    const auto cancelled = Timer::after(*loop, std::chrono::nanoseconds(0), never);
  }
  const auto first = Timer::after(*loop, std::chrono::milliseconds(1), [&] { ++calls; });
  const auto last = Timer::after(*loop, std::chrono::milliseconds(2), [&] { loop->stop(); });
  loop->run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace keepstep::agent
