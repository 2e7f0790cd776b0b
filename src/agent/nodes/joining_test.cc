// Node 0's part of joining, with a real coordinator and the real brain.
#include "agent/nodes/joining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>

#include "base/token.h"
#include "coordinator/coordinator.h"

namespace keepstep::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kToken = "the token of this job, in a test";

class JoiningTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "joining-" + to_hex(random_nonce());
    journal_ = *observe::Journal::open(directory_, 0);
    coordinator::CoordinatorConfig coordinator{.listen = "127.0.0.1:0",
                                               .key = net::SharedKey::control(*JobToken::parse(kToken), "run 7")};
    coordinator.membership.world_size = 2;
    auto started = coordinator::Coordinator::start(std::move(coordinator), journal_.get());
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
    spec_.nnodes = 2;
    pump_ = std::make_unique<OutputPump>(spec_, nullptr);
    core_ = std::make_unique<AgentCore>(AgentConfig{.spec = spec_, .token = *JobToken::parse(kToken), .version = "9.9"},
                                        *journal_, *pump_);
    core_->link = *CoordinatorLink::connect(
        coordinator_->address(), 0, "node-a",
        *net::TlsContext::create(net::SharedKey::control(*JobToken::parse(kToken), "run 7")),
        [this](const brain::Effect& effect) {
          if (const auto* end = std::get_if<brain::EndJob>(&effect); end != nullptr && !std::exchange(ended_, true)) {
            end_.set_value(*end);
          }
        },
        [](const std::string&) {}, std::chrono::seconds(20));
    clocks_ = std::make_unique<Clocks>(*core_);
    joining_ = std::make_unique<Joining>(*core_, *clocks_);
  }
  void TearDown() override {
    core_.reset();
    coordinator_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::string directory_;
  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  JobSpec spec_;
  std::unique_ptr<OutputPump> pump_;
  bool ended_ = false;
  std::promise<brain::EndJob> end_;
  std::unique_ptr<AgentCore> core_;
  std::unique_ptr<Clocks> clocks_;
  std::unique_ptr<Joining> joining_;
};

TEST_F(JoiningTest, a_node_that_nobody_understands_ends_a_job_that_has_not_begun_and_is_told_which_version_it_needs) {
  joining_->on_unreadable(1);
  const brain::EndJob end = end_.get_future().get();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.message, AllOf(HasSubstr("node 1 cannot take part"), HasSubstr("keepstep 9.9"),
                                 HasSubstr("Install the same version on all nodes")));
}

TEST_F(JoiningTest, a_message_that_nobody_understands_of_a_node_that_takes_part_ends_nothing) {
  core_->joined[1] = "node-b";
  joining_->on_unreadable(1);
  core_->stop_job(3, "asked for");
  EXPECT_EQ(end_.get_future().get().exit_code, 3);
}

}  // namespace
}  // namespace keepstep::agent
