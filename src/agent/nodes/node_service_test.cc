#include "agent/nodes/node_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/runtime_folder_testing.h"
#include "base/socket/local_socket.h"
#include "base/socket/tcp_socket.h"
#include "rank/link/node_link.h"

namespace keepstep::agent {
namespace {

using rank::NodeLink;
using testing::HasSubstr;

// A job of this test, and a folder for the names of its agents.
class OwnJob : public testing::Test {
 protected:
  OwnRuntimeFolder own_;
  const std::string job_ =
      "test-" + std::to_string(getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name();
};

// A service in its own thread; it ends by itself once all links are gone.
class NodeServiceTest : public OwnJob {
 protected:
  void SetUp() override {
    auto service = NodeService::create(job_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    thread_ = std::thread([this] { service_->run(); });
  }
  void TearDown() override {
    thread_.join();
    service_.reset();
    EXPECT_TRUE(own_.empty());
  }

  std::unique_ptr<NodeLink> link() {
    auto link = NodeLink::connect(job_);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  std::unique_ptr<NodeService> service_;
  std::thread thread_;
};

TEST_F(NodeServiceTest, ranks_that_joined_can_talk_until_one_aborts) {
  const auto first = link();
  const auto second = link();
  std::thread other([&] { EXPECT_TRUE(second->join("world", 1, 2, -1).ok()); });
  EXPECT_TRUE(first->join("world", 0, 2, -1).ok());
  other.join();
  {
    const auto a = first->communicator();
    const auto b = second->communicator();
    const comm::OpId one = a->barrier(comm::kWorld);
    const comm::OpId two = b->barrier(comm::kWorld);
    std::thread waiter([&] { EXPECT_EQ(b->wait(two).outcome, comm::Outcome::kDone); });
    EXPECT_EQ(a->wait(one).outcome, comm::Outcome::kDone);
    waiter.join();
    const comm::OpId alone = a->barrier(comm::kWorld);
    second->abort("enough");
    EXPECT_EQ(a->wait(alone).outcome, comm::Outcome::kInterrupted);
    EXPECT_EQ(first->why_interrupted(), "rank 1 aborted: enough");
  }
}

TEST_F(NodeServiceTest, a_member_that_leaves_disturbs_nobody_and_one_that_is_lost_does) {
  std::vector<std::unique_ptr<NodeLink>> links;
  std::vector<std::thread> joining;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    links.push_back(link());
    joining.emplace_back([&, rank] { EXPECT_TRUE(links[rank]->join("world", rank, 3, -1).ok()); });
  }
  for (std::thread& thread : joining) {
    thread.join();
  }
  links[2]->close();
  auto answer = links[0]->store("set", "key", "value", -1);  // the service handles it after the leave
  EXPECT_TRUE(answer->answered);
  EXPECT_FALSE(links[0]->interrupted());

  const auto survivor = link();
  auto lost = connect_local(service_->path());
  ASSERT_TRUE(lost.ok()) << lost.status();
  ASSERT_TRUE(lost->send(messages::encode({0, {}, messages::write(messages::Join{"next", 1, 2})})).ok());
  ASSERT_TRUE(survivor->join("next", 0, 2, -1).ok());
  const comm::OpId alone = survivor->communicator()->barrier(comm::kWorld);
  *lost = PacketSocket();
  EXPECT_EQ(survivor->communicator()->wait(alone).outcome, comm::Outcome::kInterrupted);
  EXPECT_THAT(survivor->why_interrupted(), HasSubstr("rank 1 (process "));
}

TEST_F(NodeServiceTest, a_join_that_cannot_succeed_says_why) {
  const auto first = link();
  EXPECT_THAT(std::string(first->join("world", 0, 3, 50).message()), HasSubstr("2 of 3 ranks did not join"));
  const auto again = link();
  EXPECT_THAT(std::string(again->join("world", 0, 3, -1).message()), HasSubstr("rank 0 is taken by process"));
  const auto other = link();
  EXPECT_THAT(std::string(other->join("world", 1, 2, -1).message()), HasSubstr("others said 3"));
  const auto large = link();
  EXPECT_THAT(std::string(large->join("large", 0, 1000, -1).message()), HasSubstr("is the most"));
}

TEST_F(NodeServiceTest, the_store_waits_for_keys_and_compares) {
  const auto first = link();
  const auto second = link();
  std::thread waiter([&] { EXPECT_EQ(second->store("get", "late", "", -1)->value, std::string("\0x", 2)); });
  EXPECT_FALSE(second->store("get", "never", "", 20)->answered);
  EXPECT_TRUE(first->store("set", "late", std::string("\0x", 2), -1)->ok);
  waiter.join();
  EXPECT_EQ(first->store("add", "count", "5", -1)->value, "5");
  EXPECT_EQ(second->store("add", "count", "2", -1)->value, "7");
  EXPECT_EQ(first->store("compare_set", "who", "0:me", -1)->value, "me");
  EXPECT_EQ(second->store("compare_set", "who", "0:you", -1)->value, "me");
}

TEST_F(NodeServiceTest, garbage_ends_that_connection_only) {
  const auto good = link();
  for (const std::string& bytes : {std::string("garbage"), std::string(100'000, 'x'),
                                   messages::encode({0, {}, R"(join {"key": 7, "rank": 0, "world": 1})"}),
                                   messages::encode({0, {}, messages::write(messages::Formed{})})}) {
    auto stranger = connect_local(service_->path());
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    ASSERT_TRUE(stranger->send(bytes).ok());
    EXPECT_TRUE(absl::IsUnavailable(stranger->receive().status())) << bytes.size();
  }
  EXPECT_TRUE(good->store("set", "still", "there", -1)->ok);
  EXPECT_EQ(service_->refused(), 4U);
}

// The agents of a job on two nodes of this machine.
class SeveralNodesTest : public OwnJob {
 protected:
  void SetUp() override {
    for (int node = 0; node < 2; ++node) {
      const auto any = listen_tcp({"127.0.0.1", 0});
      ASSERT_TRUE(any.ok()) << any.status();
      addresses_.push_back(*local_address(any->get()));
    }
  }
  void TearDown() override {
    for (uint32_t node = 0; node < 2; ++node) {
      end(node);
    }
    EXPECT_TRUE(own_.empty());
  }
  void start(uint32_t node, const std::string& token = std::string(40, 't')) {
    auto service = NodeService::create(job_, StoreNodes{"list", addresses_, node, *JobToken::parse(token)});
    ASSERT_TRUE(service.ok()) << service.status();
    services_[node] = *std::move(service);
    threads_[node] = std::thread([service = services_[node].get()] { service->run(); });
  }
  void end(uint32_t node) {
    if (threads_[node].joinable()) {
      threads_[node].join();
    }
    services_[node].reset();
  }
  std::unique_ptr<NodeLink> link(uint32_t node) {
    auto link = NodeLink::connect(rank::job_on_node(job_, "list", node));
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  std::vector<SocketAddress> addresses_;
  std::unique_ptr<NodeService> services_[2];
  std::thread threads_[2];
};

TEST_F(SeveralNodesTest, have_one_store) {
  start(1);
  const auto there = link(1);
  std::thread waiter([&] { EXPECT_EQ(there->store("get", "0/late", "", -1)->value, std::string(3'000'000, 'x')); });
  EXPECT_FALSE(there->store("wait", "0/never", "", 20)->answered);
  start(0);  // a node may come later
  const auto here = link(0);
  EXPECT_TRUE(here->store("set", "0/late", std::string(3'000'000, 'x'), -1)->ok);
  waiter.join();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ((i % 2 == 0 ? here : there)->store("add", absl::StrFormat("0/n%d", i % 7), "1", -1)->value,
              std::to_string(i / 7 + 1));
  }
  EXPECT_EQ(here->store("count", "", "", -1)->value, "8");
  EXPECT_EQ(there->store("count", "", "", -1)->value, "8");
  EXPECT_EQ(there->store("absent", "", "", -1)->value, "");
}

TEST_F(SeveralNodesTest, an_agent_stays_while_another_node_has_ranks) {
  start(0);
  start(1);
  const auto there = link(1);
  link(0)->store("set", "0/k", "v", -1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);  // longer than one without anybody would
  for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
    ASSERT_TRUE(there->store("set", absl::StrFormat("0/%d", i % 8), "v", 10'000)->ok);
  }
}

TEST_F(SeveralNodesTest, with_another_token_are_strangers) {
  start(0);
  start(1, std::string(40, 'u'));
  const auto there = link(1);
  std::string absent;
  while (absent.find("key") == std::string::npos) {
    absent = there->store("absent", "", "", -1)->value;
  }
  EXPECT_THAT(absent, HasSubstr(absl::StrFormat("node 0 (%s): ", addresses_[0].text())));
  EXPECT_THAT(link(0)->store("absent", "", "", -1)->value, HasSubstr("it has not connected yet"));
}

TEST_F(SeveralNodesTest, a_taken_port_is_named_and_tried_again) {
  {
    const auto taken = listen_tcp(addresses_[0]);
    ASSERT_TRUE(taken.ok()) << taken.status();
    start(0);
    const auto here = link(0);
    std::string absent;
    while (absent.find("this node does not listen") == std::string::npos) {
      absent = here->store("absent", "", "", -1)->value;
    }
    EXPECT_THAT(absent, HasSubstr(addresses_[0].text()));
  }
  const auto here = link(0);
  start(1);
  EXPECT_EQ(link(1)->store("count", "", "", -1)->value, "0");
}

TEST_F(NodeServiceTest, there_is_one_agent_a_job) {
  EXPECT_TRUE(absl::IsAlreadyExists(NodeService::create(job_).status()));
  EXPECT_TRUE(absl::IsNotFound(NodeLink::connect(job_ + "-other").status()));
  link();  // so that the service has somebody to outlive
}

}  // namespace
}  // namespace keepstep::agent
