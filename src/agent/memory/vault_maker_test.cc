#include "agent/memory/vault_maker.h"

#include <gtest/gtest.h>

#include <vector>

namespace keepstep::agent {
namespace {

struct VaultMakerTest : ::testing::Test {
  void SetUp() override {
    loop = *EventLoop::create();
    maker = std::make_unique<VaultMaker>(loop, vaults);
  }
  ShardVaults::Need need(brain::Rank rank, uint64_t data_bytes = 1000) const { return {{1, rank}, data_bytes, 4096}; }
  // Runs the loop until there are this many answers.
  void await(size_t answers) {
    loop->every(std::chrono::milliseconds(1), [this, answers] {
      if (came.size() >= answers) {
        loop->stop();
      }
    });
    loop->run();
  }
  VaultMaker::Answer note() {
    return [this](StatusOr<int> memory) { came.push_back(std::move(memory)); };
  }
  ShardVaults vaults;
  std::shared_ptr<EventLoop> loop;
  std::unique_ptr<VaultMaker> maker;
  std::vector<StatusOr<int>> came;
};

TEST_F(VaultMakerTest, ranks_are_answered_in_turn_and_two_that_want_the_same_get_one_memory) {
  maker->ask(need(0), note());
  maker->ask(need(0), note());
  maker->ask(need(1), note());
  EXPECT_TRUE(came.empty()) << "the loop waited";
  await(3);
  ASSERT_TRUE(came[0].ok() && came[1].ok() && came[2].ok());
  EXPECT_EQ(*came[0], *came[1]);
  EXPECT_NE(*came[0], *came[2]);
  maker->ask(need(1), note());
  ASSERT_EQ(came.size(), 4U) << "what is there is given at once";
  EXPECT_EQ(*came[3], *came[2]);
}

TEST_F(VaultMakerTest, memory_that_the_machine_does_not_have_is_an_error_and_stops_no_other) {
  maker->ask(need(0, uint64_t{1} << 45), note());
  maker->ask(need(1), note());
  await(2);
  EXPECT_TRUE(absl::IsResourceExhausted(came[0].status())) << came[0].status();
  EXPECT_NE(came[0].status().message().find("rank 0"), std::string::npos);
  EXPECT_TRUE(came[1].ok());
}

TEST_F(VaultMakerTest, its_end_gives_up_what_is_being_made) {
  maker->ask(need(0, 1 << 20), note());
  maker->ask(need(1, 1 << 20), note());
  maker.reset();
  EXPECT_TRUE(came.empty());
  EXPECT_TRUE(vaults.held().empty());
}

}  // namespace
}  // namespace keepstep::agent
