#include "observe/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fd.h"

namespace keepstep::observe {
namespace {

using nlohmann::json;

constexpr std::chrono::minutes kLong{1};  // longer than anything that works takes

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() {
    signal(SIGPIPE, SIG_IGN);
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-journal-XXXXXX").string();
    root_ = mkdtemp(name.data());
    dir_ = root_ / "a" / "b";
  }
  ~JournalTest() override { std::filesystem::remove_all(root_); }

  std::unique_ptr<Journal> open(uint32_t node = 0) {
    auto journal = Journal::open(dir_.string(), node);
    EXPECT_TRUE(journal.ok()) << journal.status();
    return std::move(journal).value();
  }
  std::vector<json> lines(const char* file) {
    std::vector<json> result;
    std::ifstream in(dir_ / file);
    for (std::string line; std::getline(in, line);) {
      result.push_back(json::parse(line));
    }
    return result;
  }

  std::filesystem::path root_;
  std::filesystem::path dir_;
};

TEST_F(JournalTest, a_line_carries_the_decision_its_reason_its_identity_and_three_times) {
  auto journal = open(7);
  journal->write("verdict", {.term = 1, .generation = 4}, "rank 3 had not voted",
                 {{"step", int64_t{118}},
                  {"verdict", std::string("redo")},
                  {"ranks", std::vector<int64_t>{0, 2}},
                  {"fatal", false},
                  {"seconds", 0.25}});
  ASSERT_TRUE(journal->flush(kLong));
  const auto all = lines("journal.node7.jsonl");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["event"], "verdict");
  EXPECT_EQ(all[0]["because"], "rank 3 had not voted");
  EXPECT_EQ(all[0]["term"], 1);
  EXPECT_EQ(all[0]["generation"], 4);
  EXPECT_EQ(all[0]["node"], 7);
  EXPECT_EQ(all[0]["step"], 118);
  EXPECT_EQ(all[0]["ranks"], json({0, 2}));
  EXPECT_EQ(all[0]["fatal"], false);
  EXPECT_EQ(all[0]["seconds"], 0.25);
  EXPECT_GE(all[0]["t"], 0.0);
  EXPECT_GE(all[0]["mono"], all[0]["t"]);
  EXPECT_GT(all[0]["wall"], 1.6e9);
}

TEST_F(JournalTest, no_reason_means_no_because) {
  open()->write("finished", {1, 1}, "");
  EXPECT_FALSE(lines("journal.jsonl").at(0).contains("because"));
}

TEST_F(JournalTest, quotes_newlines_and_bytes_that_are_no_utf8_stay_one_line_of_json) {
  open()->write("fault_detected", {1, 1}, "a \"quote\"\nand a line\xff end", {{"what", std::string("\x01\\")}});
  const auto all = lines("journal.jsonl");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["because"], "a \"quote\"\nand a line\xEF\xBF\xBD end");
  EXPECT_EQ(all[0]["what"], "\x01\\");
}

TEST_F(JournalTest, numbers_that_json_does_not_know_are_strings) {
  open()->write("x", {1, 1}, "",
                {{"a", std::nan("")},
                 {"b", std::numeric_limits<double>::infinity()},
                 {"c", -std::numeric_limits<double>::infinity()}});
  const auto line = lines("journal.jsonl").at(0);
  EXPECT_EQ(line["a"], "nan");
  EXPECT_EQ(line["b"], "inf");
  EXPECT_EQ(line["c"], "-inf");
}

TEST_F(JournalTest, lines_of_many_threads_are_never_mixed) {
  auto journal = open();
  const std::string filler(3000, 'x');
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int64_t k = 0; k < 250; ++k) {
        journal->write("tick", {1, 1}, filler, {{"thread", i}, {"k", k}});
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  ASSERT_TRUE(journal->flush(kLong));
  EXPECT_EQ(lines("journal.jsonl").size(), 1000u);  // all of them parse
}

// Replaces an open file by the end of a full pipe, so that writers block. Returns the other end.
Fd stall(const std::filesystem::path& file) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Fd reader(ends[0]);
  const Fd writer(ends[1]);
  fcntl(writer.get(), F_SETFL, O_NONBLOCK);
  const std::string filling(4096, '\n');
  while (write(writer.get(), filling.data(), filling.size()) > 0) {
  }
  fcntl(writer.get(), F_SETFL, 0);
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(open.path(), error) == file) {
      EXPECT_GE(dup2(writer.get(), std::stoi(open.path().filename())), 0);
    }
  }
  return reader;
}

TEST_F(JournalTest, a_disk_that_stalls_holds_up_neither_a_writer_nor_the_end) {
  auto journal = open();
  Fd disk = stall(dir_ / "journal.jsonl");
  for (int64_t k = 0; k < 100; ++k) {
    journal->write("tick", {1, 1}, "", {{"k", k}});  // would wait forever
  }
  EXPECT_FALSE(journal->flush(std::chrono::milliseconds(10)));
  std::string came;
  std::thread reader([&] {
    std::string some(1 << 16, '\0');
    for (ssize_t count = 1; count > 0 && came.find("\"k\":99") == std::string::npos;) {
      count = read(disk.get(), some.data(), some.size());
      came.append(some, 0, count > 0 ? static_cast<size_t>(count) : 0);
    }
  });
  EXPECT_TRUE(journal->flush(kLong));
  reader.join();
  EXPECT_EQ(std::count(came.begin(), came.end(), '{'), 100);
}

TEST_F(JournalTest, a_disk_that_is_full_for_a_while_costs_no_line) {
  auto journal = open();
  int number = -1;
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(open.path(), error) == dir_ / "metrics.jsonl") {
      number = std::stoi(open.path().filename());
    }
  }
  ASSERT_GE(number, 0);
  const Fd file(fcntl(number, F_DUPFD_CLOEXEC, 0));
  const Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_GE(dup2(full.get(), number), 0);
  for (uint64_t step = 1; step <= 100; ++step) {
    journal->metrics(step, "\"loss\": 1.5");
  }
  EXPECT_FALSE(journal->flush(std::chrono::milliseconds(10)));
  ASSERT_GE(dup2(file.get(), number), 0);
  EXPECT_TRUE(journal->flush(kLong));
  EXPECT_EQ(lines("metrics.jsonl").size(), 100u);
}

TEST_F(JournalTest, lines_beyond_what_is_kept_for_a_disk_that_stalls_are_dropped) {
  auto journal = open();
  Fd disk = stall(dir_ / "journal.jsonl");
  const std::string filler(1 << 20, 'x');
  for (int64_t k = 0; k < 200; ++k) {
    journal->write("tick", {1, 1}, filler, {{"k", k}});
  }
  disk.reset();  // the rest fails, which is no reason to wait
  EXPECT_TRUE(journal->flush(kLong));
}

TEST_F(JournalTest, a_journal_of_an_earlier_run_is_an_error_that_names_it_and_keeps_it) {
  open()->write("x", {1, 1}, "");
  const auto second = Journal::open(dir_.string(), 0);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find((dir_ / "journal.jsonl").string()), std::string::npos);
  EXPECT_NE(second.status().message().find("--journal"), std::string::npos);
  EXPECT_EQ(lines("journal.jsonl").size(), 1u);
}

TEST_F(JournalTest, a_directory_that_cannot_be_made_is_an_error_with_its_name) {
  std::ofstream(root_ / "a") << "a file";
  const auto journal = Journal::open(dir_.string(), 0);
  ASSERT_FALSE(journal.ok());
  EXPECT_NE(journal.status().message().find(dir_.string()), std::string::npos);
}

TEST_F(JournalTest, without_a_directory_lines_are_dropped) {
  auto journal = Journal::open("", 0);
  ASSERT_TRUE(journal.ok());
  (*journal)->write("x", {1, 1}, "nobody reads this");
  (*journal)->metrics(1, "\"loss\": 1.5");
  EXPECT_GE((*journal)->now_s(), 0.0);
}

TEST_F(JournalTest, metrics_keep_every_digit_of_a_loss_and_cannot_replace_the_step) {
  open()->metrics(118, "\"loss\": 2.3140001296997070, \"step\": 5, \"why\":\n\"x\"");
  const auto line = lines("metrics.jsonl").at(0);
  EXPECT_EQ(line["step"], 118);
  EXPECT_EQ(line["loss"].get<double>(), 2.3140001296997070);
  EXPECT_EQ(line["why"], "x");
  EXPECT_TRUE(line.contains("mono"));
}

TEST_F(JournalTest, metrics_that_are_no_json_are_kept_as_text) {
  auto journal = open();
  journal->metrics(1, "\"loss\": NaN");
  journal->metrics(2, "");
  ASSERT_TRUE(journal->flush(kLong));
  const auto all = lines("metrics.jsonl");
  EXPECT_EQ(all.at(0)["invalid"], "\"loss\": NaN");
  EXPECT_EQ(all.at(1)["step"], 2);
}

}  // namespace
}  // namespace keepstep::observe
