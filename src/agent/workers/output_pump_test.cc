#include "agent/workers/output_pump.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace keepstep::agent {
namespace {

using ::testing::HasSubstr;

class OutputPumpTest : public ::testing::Test {
 protected:
  OutputPumpTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-pump-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    int out[2];
    int err[2];
    EXPECT_EQ(pipe2(out, O_NONBLOCK), 0);
    EXPECT_EQ(pipe2(err, O_NONBLOCK), 0);
    out_read_.reset(out[0]);
    out_write_.reset(out[1]);
    err_read_.reset(err[0]);
    err_write_.reset(err[1]);
    spec_.nproc_per_node = 2;
  }
  ~OutputPumpTest() override {
    pump_.reset();
    std::filesystem::remove_all(dir_);
  }

  OutputPump& pump() {
    if (pump_ == nullptr) {
      pump_ = std::make_unique<OutputPump>(spec_, nullptr, out_write_.get(), err_write_.get());
    }
    return *pump_;
  }
  std::pair<Fd, Fd> open(brain::WorkerId worker, std::optional<uint32_t> rank, uint32_t generation = 1) {
    auto ends = pump().open(worker, "spare" + std::to_string(worker), rank, generation);
    EXPECT_TRUE(ends.ok()) << ends.status();
    return std::move(ends).value();
  }
  static void print(const Fd& fd, const std::string& text) {
    EXPECT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Prints one text on each stream of a worker, which then ends.
  void run_worker(brain::WorkerId worker, std::optional<uint32_t> rank, const std::string& out,
                  const std::string& err = "") {
    auto [out_fd, err_fd] = open(worker, rank);
    print(out_fd, out);
    print(err_fd, err);
    out_fd.reset();
    err_fd.reset();
    pump().flush(worker);
  }
  static std::string taken(const Fd& fd) {
    std::string text;
    char buffer[65536];
    for (ssize_t n; (n = read(fd.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  std::string console() { return taken(out_read_); }
  std::string console_err() { return taken(err_read_); }
  std::string await_console(size_t bytes) {
    std::string text;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (text.size() < bytes && std::chrono::steady_clock::now() < deadline) {
      pollfd ready{.fd = out_read_.get(), .events = POLLIN, .revents = 0};
      poll(&ready, 1, 1000);
      text += console();
    }
    return text;
  }
  std::string file(const std::string& path) {
    std::ifstream in(dir_ / path);
    return in ? (std::stringstream() << in.rdbuf()).str() : "(no file)";
  }

  JobSpec spec_;
  std::filesystem::path dir_;
  Fd out_read_, out_write_, err_read_, err_write_;
  std::unique_ptr<OutputPump> pump_;
};

TEST_F(OutputPumpTest, by_default_lines_go_to_the_console_as_they_are) {
  run_worker(0, 0, "hello\nworld\n", "oh\n");
  EXPECT_EQ(console(), "hello\nworld\n");
  EXPECT_EQ(console_err(), "oh\n");
}

TEST_F(OutputPumpTest, what_the_launcher_says_goes_to_stderr_as_a_line) {
  pump().say("keepstep: rank 1 is gone");
  pump().finish();
  EXPECT_EQ(console_err(), "keepstep: rank 1 is gone\n");
  EXPECT_EQ(console(), "");
}

TEST_F(OutputPumpTest, a_last_line_without_an_end_is_not_lost) {
  spec_.log_dir = dir_;
  run_worker(0, 0, "a\nb");
  EXPECT_EQ(console(), "a\nb\n");
  EXPECT_EQ(file("none/attempt_1/0/stdout.log"), "a\nb");
}

TEST_F(OutputPumpTest, redirected_streams_go_to_files_only) {
  spec_.log_dir = dir_;
  spec_.redirects.all = 1;
  run_worker(5, 1, "out\n", "err\n");
  EXPECT_EQ(console(), "");
  EXPECT_EQ(console_err(), "err\n");
  EXPECT_EQ(file("none/attempt_1/1/stdout.log"), "out\n");
  EXPECT_EQ(file("none/attempt_1/1/stderr.log"), "err\n");
}

TEST_F(OutputPumpTest, teed_streams_go_to_files_and_prefixed_to_the_console) {
  spec_.log_dir = dir_;
  spec_.run_id = "job";
  spec_.role = "trainer";
  spec_.redirects.all = 3;
  spec_.tee.by_rank[1] = 1;
  run_worker(0, 0, "zero\n");
  run_worker(1, 1, "one\ntwo\n", "err\n");
  EXPECT_EQ(console(), "[trainer1]:one\n[trainer1]:two\n");
  EXPECT_EQ(console_err(), "");
  EXPECT_EQ(file("job/attempt_1/1/stdout.log"), "one\ntwo\n");
  EXPECT_EQ(file("job/attempt_1/0/stdout.log"), "zero\n");
}

TEST_F(OutputPumpTest, the_filter_of_ranks_is_for_the_console_only) {
  spec_.log_dir = dir_;
  spec_.local_ranks_filter = {1};
  run_worker(0, 0, "zero\n");
  run_worker(1, 1, "one\n");
  EXPECT_EQ(console(), "one\n");
  EXPECT_EQ(file("none/attempt_1/0/stdout.log"), "zero\n");
}

TEST_F(OutputPumpTest, a_spares_lines_are_a_ranks_from_its_assignment_on) {
  spec_.log_dir = dir_;
  spec_.tee.all = 3;
  auto [out, err] = open(9, std::nullopt);
  print(out, "waiting\n");
  pump().assign(9, 1, 4);
  pump().assign(9, 1, 4);
  const std::string first = "[default:spare9]:waiting\n";
  EXPECT_EQ(await_console(first.size()), first);
  // Once the folder exists, the assignment was carried out.
  while (!std::filesystem::exists(dir_ / "none/attempt_4/1")) {
    std::this_thread::yield();
  }
  print(out, "training\n");
  out.reset();
  err.reset();
  pump().flush(9);
  EXPECT_EQ(console(), "[default1]:training\n");
  EXPECT_EQ(file("none/spares/9/stdout.log"), "waiting\n");
  EXPECT_EQ(file("none/attempt_4/1/stdout.log"), "training\n");
  EXPECT_EQ(file("none/attempt_4/1/stderr.log"), "(no file)");
}

TEST_F(OutputPumpTest, the_same_rank_and_generation_again_appends) {
  spec_.log_dir = dir_;
  run_worker(0, 0, "first\n");
  run_worker(7, 0, "second\n");
  EXPECT_EQ(file("none/attempt_1/0/stdout.log"), "first\nsecond\n");
}

TEST_F(OutputPumpTest, log_dir_dev_null_makes_no_files) {
  spec_.log_dir = "/dev/null";
  spec_.redirects.all = 1;
  run_worker(0, 0, "dropped\n", "shown\n");
  EXPECT_EQ(console(), "");
  EXPECT_EQ(console_err(), "shown\n");
  EXPECT_EQ(log_folder(spec_, 0, 1), "");
}

TEST_F(OutputPumpTest, lines_of_many_workers_are_never_mixed) {
  spec_.log_dir = "/dev/null";
  spec_.tee.all = 1;
  constexpr int kWorkers = 4;
  constexpr int kLines = 500;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kWorkers; ++i) {
    threads.emplace_back([this, i, out = open(i, i).first]() mutable {
      const std::string line(100, static_cast<char>('a' + i));
      for (int k = 0; k < kLines; ++k) {
        print(out, line.substr(0, 50));  // a line in two writes
        print(out, line.substr(50) + "\n");
      }
      out.reset();
    });
  }
  std::istringstream lines(await_console(kWorkers * kLines * (11 + 101)));
  for (auto& thread : threads) {
    thread.join();
  }
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.size(), 111u) << line;
    const int rank = line[8] - '0';
    ASSERT_EQ(line, "[default" + std::to_string(rank) + "]:" + std::string(100, static_cast<char>('a' + rank)));
  }
  EXPECT_EQ(count, kWorkers * kLines);
}

TEST_F(OutputPumpTest, a_line_longer_than_64_kib_is_passed_in_pieces_and_whole) {
  spec_.log_dir = dir_;
  spec_.tee.all = 1;
  auto [out, err] = open(0, 0);
  const std::string line = std::string(300'000, 'x') + "\n";
  std::thread writer([&out, &line] {
    print(out, line);
    out.reset();
  });
  const std::string shown = await_console(line.size() + 11);
  writer.join();
  err.reset();
  pump().flush(0);
  EXPECT_EQ(shown, "[default0]:" + line);
  EXPECT_EQ(file("none/attempt_1/0/stdout.log"), line);
}

TEST_F(OutputPumpTest, a_console_that_takes_nothing_holds_up_the_writer_not_the_agent) {
  auto [out, err] = open(0, 0);
  ASSERT_EQ(fcntl(out.get(), F_SETFL, O_NONBLOCK), 0);
  // Until nothing more fits: console pipe, our buffer, worker's pipe. Bounded, so it ends.
  const std::string line = std::string(999, 'x') + "\n";
  size_t accepted = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (std::chrono::steady_clock::now() < deadline) {
    const ssize_t n = write(out.get(), line.data(), line.size());
    accepted += n > 0 ? static_cast<size_t>(n) : 0;
  }
  EXPECT_LT(accepted, 1'000'000u);
  const auto before = std::chrono::steady_clock::now();
  pump().assign(0, 0, 2);
  auto other = open(1, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(100));
  pump().finish(50);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
}

TEST_F(OutputPumpTest, a_closed_console_does_not_end_the_launcher_and_files_go_on) {
  spec_.log_dir = dir_;
  out_read_.reset();
  run_worker(0, 0, "one\n");
  run_worker(1, 0, "two\n");
  EXPECT_EQ(file("none/attempt_1/0/stdout.log"), "one\ntwo\n");
}

TEST_F(OutputPumpTest, a_grandchild_that_holds_the_pipes_open_is_let_go_with_what_it_wrote) {
  auto [out, err] = open(0, 0);
  print(out, "unfinished");
  pump().flush(0, 10);
  EXPECT_EQ(await_console(11), "unfinished\n");
  pump().finish();
}

TEST_F(OutputPumpTest, finish_writes_what_has_come_and_ends_open) {
  auto [out, err] = open(0, 0);
  print(out, "last words\n");
  pump().finish(10);
  EXPECT_EQ(console(), "last words\n");
  EXPECT_FALSE(pump().open(1, "rank1", 1, 1).ok());
}

TEST_F(OutputPumpTest, a_worker_has_its_pipes_once) {
  auto ends = open(3, 0);
  const auto again = pump().open(3, "rank0", 0, 1);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("worker 3"));
}

TEST_F(OutputPumpTest, a_killed_process_leaves_all_it_wrote) {
  auto [out, err] = open(0, 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)!write(out.get(), "before the kill\n", 16);
    raise(SIGKILL);
  }
  out.reset();
  err.reset();
  waitpid(child, nullptr, 0);
  pump().flush(0);
  EXPECT_EQ(console(), "before the kill\n");
}

TEST_F(OutputPumpTest, a_log_folder_that_cannot_be_made_loses_the_file_and_not_the_console) {
  std::ofstream(dir_ / "none") << "a file is in the way";
  spec_.log_dir = dir_;
  run_worker(0, 0, "hello\n");
  EXPECT_EQ(console(), "hello\n");
}

}  // namespace
}  // namespace keepstep::agent
