#include "agent/drain_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/local_socket.h"

namespace keepstep::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// With another program in the place of Python: how it starts and ends is what this is about.
class DrainProcessTest : public testing::Test {
 protected:
  void open(const std::string& program) {
    loop_ = *EventLoop::create();
    name_ = "keepstep-drain-test-" + std::to_string(getpid()) +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    auto drain = DrainProcess::open(*loop_, name_, program, 0,
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
    ASSERT_TRUE(drain.ok()) << drain.status();
    drain_ = *std::move(drain);
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
  std::string name_;
  std::unique_ptr<DrainProcess> drain_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::vector<std::pair<brain::Version, uint32_t>> saved_;
  std::string last_;
};

TEST_F(DrainProcessTest, nothing_is_started_before_somebody_calls) {
  open("true");
  stop_loop();
  EXPECT_TRUE(events_.empty());
  drain_->end(std::chrono::seconds(60), -1);
}

TEST_F(DrainProcessTest, one_that_ends_at_once_is_started_three_times_and_then_calls_are_refused) {
  open("false");
  const StatusOr<PacketSocket> call = connect_local(name_);
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_TRUE(wait_for(6));
  stop_loop();
  EXPECT_THAT(events_, ElementsAre("drain_started", "drain_ended", "drain_started", "drain_ended", "drain_started",
                                   "drain_ended"));
  EXPECT_THAT(last_, HasSubstr("exited with code 1"));
  EXPECT_THAT(last_, HasSubstr("no more are started"));
  EXPECT_TRUE(absl::IsNotFound(connect_local(name_).status()));
  EXPECT_FALSE(call->receive().ok()) << "who waits for an answer hears that there is none";
}

TEST_F(DrainProcessTest, a_program_that_is_not_there_is_said_to_be_and_calls_are_refused) {
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
