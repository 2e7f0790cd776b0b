#include "observe/status_line.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/fd.h"

namespace keepstep::observe {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RunStatus example() {
  return {.step = 118,
          .step_time_s = 0.402,
          .loss = 2.314,
          .ranks = 4,
          .world_size = 4,
          .spares = 1,
          .generation = 3,
          .recoveries = 2,
          .note = ""};
}

constexpr const char* kText = "step 118  0.402 s/step  loss 2.314  ranks 4/4 +1 spare  generation 3  recoveries 2";

// A pipe in place of the terminal, for a line that is forced to draw.
class Screen {
 public:
  Screen() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_NONBLOCK), 0);
    read_.reset(fds[0]);
    write_.reset(fds[1]);
  }
  int fd() const { return write_.get(); }
  std::string shown() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(read_.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }

 private:
  Fd read_;
  Fd write_;
};

TEST(StatusLine, shows_the_run_in_one_line) { EXPECT_EQ(format_status(example(), 0), kText); }

TEST(StatusLine, leaves_out_what_is_not_known_and_adds_what_is_going_on) {
  EXPECT_EQ(format_status({.ranks = 0, .world_size = 2, .spares = 2, .note = "starting"}, 0),
            "ranks 0/2 +2 spares  recoveries 0  starting");
}

TEST(StatusLine, is_cut_to_the_width_and_holds_no_control_characters) {
  EXPECT_EQ(format_status(example(), 8), "step 118");
  RunStatus status = example();
  status.note = "a\nb\x1b[2Jc";
  EXPECT_THAT(format_status(status, 0), EndsWith("a b [2Jc"));
}

TEST(StatusLine, draws_nothing_where_there_is_no_terminal) {
  Screen screen;
  StatusLine line(screen.fd());
  line.update(example());
  EXPECT_FALSE(line.live());
  EXPECT_EQ(screen.shown(), "");
  EXPECT_TRUE(line.print_above("hello\n", screen.fd()));
  EXPECT_EQ(screen.shown(), "hello\n");
}

TEST(StatusLine, is_drawn_at_most_ten_times_a_second) {
  Screen screen;
  StatusLine line(screen.fd(), /*forced=*/true);
  RunStatus status = example();
  line.update(status);
  EXPECT_THAT(screen.shown(), HasSubstr("step 118"));
  for (status.step = 119; *status.step < 300; ++*status.step) {
    line.update(status);
  }
  EXPECT_EQ(screen.shown(), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(110));  // tests the time itself
  line.refresh();
  EXPECT_THAT(screen.shown(), HasSubstr("step 299"));
  line.refresh();
  EXPECT_EQ(screen.shown(), "");
}

TEST(StatusLine, is_out_of_the_way_of_other_lines) {
  Screen screen;
  StatusLine line(screen.fd(), /*forced=*/true);
  line.update(example());
  screen.shown();
  line.print_above("hello\n", screen.fd());
  EXPECT_THAT(screen.shown(), StartsWith("\r\x1b[2Khello\n"));
}

TEST(StatusLine, is_gone_when_it_is_closed) {
  Screen screen;
  StatusLine line(screen.fd(), /*forced=*/true);
  line.update(example());
  screen.shown();
  line.close();
  line.update(example());
  EXPECT_EQ(screen.shown(), "\r\x1b[2K");
}

TEST(StatusLine, draws_on_a_terminal_within_its_width_unless_it_is_dumb) {
  Fd master(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK));
  ASSERT_TRUE(master.valid());
  ASSERT_EQ(grantpt(master.get()) | unlockpt(master.get()), 0);
  Fd terminal(::open(ptsname(master.get()), O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal.valid());
  const winsize narrow{.ws_row = 24, .ws_col = 11, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal.get(), TIOCSWINSZ, &narrow), 0);
  const char* term = getenv("TERM");
  const std::string before = term == nullptr ? "" : term;
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(StatusLine(terminal.get()).live());
  setenv("TERM", "xterm", 1);
  StatusLine line(terminal.get());
  EXPECT_TRUE(line.live());
  line.update(example());
  char buffer[256];
  const ssize_t n = read(master.get(), buffer, sizeof buffer);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0))), "\r\x1b[2Kstep 118  ");
  setenv("TERM", before.c_str(), 1);
}

TEST(StatusLine, neither_update_nor_close_waits_for_a_console_that_takes_nothing) {
  Screen screen;
  StatusLine line(screen.fd(), /*forced=*/true);
  std::atomic<bool> give_up{false};
  std::thread writer([&] { EXPECT_FALSE(line.print_above(std::string(1 << 20, 'x'), screen.fd(), &give_up)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  line.update(example());
  line.close();
  give_up = true;
  writer.join();
  EXPECT_THAT(screen.shown(), Not(HasSubstr("step")));
}

}  // namespace
}  // namespace keepstep::observe
