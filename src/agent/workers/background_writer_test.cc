#include "agent/workers/background_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "agent/workers/temp_folder.h"
#include "base/socket/local_socket.h"

namespace keepstep::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Runs another program in place of Python: these tests are about its start and end.
class BackgroundWriterTest : public testing::Test {
 protected:
  void open(const std::string& program) {
    loop_ = *EventLoop::create();
    auto writer = BackgroundWriter::open(*loop_, name_, program, 0,
                                         {[this](const std::string& event, const std::string& because) {
                                            const std::lock_guard lock(mutex_);
                                            events_.push_back(event);
                                            last_ = because;
                                            changed_.notify_all();
                                          },
                                          [this](brain::Version version, uint32_t generation) {
                                            const std::lock_guard lock(mutex_);
                                            saved_.emplace_back(version, generation);
                                            changed_.notify_all();
                                          },
                                          [](brain::NodeId, const std::string&) {}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    writer_ = *std::move(writer);
    thread_ = std::thread([this] { loop_->run(); });
  }
  void stop_loop() {
    if (thread_.joinable()) {
      loop_->post([this] { loop_->stop(); });
      thread_.join();
    }
  }
  void TearDown() override { stop_loop(); }
  bool wait_for(size_t events) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return events_.size() >= events; });
  }

  std::unique_ptr<EventLoop> loop_;
  const TempFolder folder_ = *TempFolder::create();
  const std::string name_ = folder_.path() / "writer";
  std::unique_ptr<BackgroundWriter> writer_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::vector<std::pair<brain::Version, uint32_t>> saved_;
  std::string last_;
};

TEST_F(BackgroundWriterTest, nothing_is_started_before_somebody_calls) {
  open("true");
  stop_loop();
  EXPECT_TRUE(events_.empty());
  writer_->end(std::chrono::seconds(60), -1);
}

TEST_F(BackgroundWriterTest, one_that_ends_at_once_is_started_three_times_and_then_calls_are_refused) {
  open("false");
  const StatusOr<PacketSocket> call = connect_local(name_);
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_TRUE(wait_for(6));
  stop_loop();
  EXPECT_THAT(events_, ElementsAre("background_writer_started", "background_writer_ended", "background_writer_started",
                                   "background_writer_ended", "background_writer_started", "background_writer_ended"));
  EXPECT_THAT(last_, HasSubstr("exited with code 1"));
  EXPECT_THAT(last_, HasSubstr("no more are started"));
  EXPECT_TRUE(absl::IsNotFound(connect_local(name_).status()));
  EXPECT_FALSE(call->receive().ok()) << "who waits for an answer hears that there is none";
}

TEST_F(BackgroundWriterTest, what_it_says_to_be_saved_is_handed_on_and_what_cannot_be_read_is_not) {
  const std::string program = testing::TempDir() + "keepstep-saved-" + std::to_string(getpid());
  std::ofstream(program) << "#!/usr/bin/env python3\nimport socket\nagent = socket.socket(fileno=4)\n"
                            "for said in ('{', '[]', '7', '{\"saved\": -1, \"generation\": 1}', '{\"saved\": 4}',\n"
                            "             '{\"generation\": 4}', '{\"saved\": 40, \"generation\": 3}'):\n"
                            "    agent.send(said.encode())\nagent.recv(1)\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  open(program);
  const StatusOr<PacketSocket> call = connect_local(name_);
  ASSERT_TRUE(call.ok()) << call.status();
  {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !saved_.empty(); }));
  }
  stop_loop();
  unlink(program.c_str());
  EXPECT_THAT(saved_, ElementsAre(testing::Pair(40, 3)));
}

// Slurm signals every process of a job, even one that has not yet got as far as ignoring the signal.
TEST_F(BackgroundWriterTest, a_signal_before_it_can_ignore_it_ends_nothing) {
  const std::string program = testing::TempDir() + "keepstep-signalled-" + std::to_string(getpid());
  std::ofstream(program) << "#!/bin/sh\nfor each in INT TERM HUP USR1 USR2; do kill -$each $$; done\nexit 7\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  open(program);
  const StatusOr<PacketSocket> call = connect_local(name_);
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_TRUE(wait_for(6));
  stop_loop();
  unlink(program.c_str());
  EXPECT_THAT(last_, HasSubstr("exited with code 7"));
}

TEST_F(BackgroundWriterTest, a_program_that_is_not_there_is_said_to_be_and_calls_are_refused) {
  open("/there/is/no/python");
  const StatusOr<PacketSocket> call = connect_local(name_);
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_TRUE(wait_for(1));
  stop_loop();
  EXPECT_THAT(last_, HasSubstr("/there/is/no/python"));
  EXPECT_TRUE(absl::IsNotFound(connect_local(name_).status()));
}

}  // namespace
}  // namespace keepstep::agent
