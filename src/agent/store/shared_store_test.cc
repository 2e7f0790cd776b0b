#include "agent/store/shared_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace keepstep::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kNodes = 3;

// The stores of all nodes, and the messages between them, in order.
class SharedStoreTest : public testing::Test {
 protected:
  SharedStoreTest() {
    for (brain::NodeId node = 0; node < kNodes; ++node) {
      stores_.emplace_back(node);
    }
  }
  void generation_begins(std::vector<brain::NodeId> nodes) {
    for (brain::NodeId node = 0; node < kNodes; ++node) {
      take(node, stores_[node].set_homes(nodes));
    }
  }
  // Worker number = its node.
  void ask(brain::NodeId node, uint64_t id, const std::string& op, const std::string& key,
           const std::string& value = "") {
    take(node, stores_[node].ask({node, id, op, key, value}));
    deliver();
  }
  void take(brain::NodeId node, const SharedStore::Replies& replies) {
    for (const StoreAnswer& answer : replies.answers) {
      answers_.push_back(
          absl::StrFormat("worker %d question %d: %s", answer.worker, answer.id, answer.ok ? answer.value : "no"));
      EXPECT_EQ(answer.worker, node) << "an answer reached the agent of another worker";
    }
    for (const auto& [to, message] : replies.messages) {
      wire_.push_back({node, to, message});
    }
  }
  void deliver() {
    while (!wire_.empty()) {
      const auto [from, to, message] = wire_.front();
      wire_.pop_front();
      take(to, heard(from, to, message));
    }
  }
  // As decoded from the wire.
  SharedStore::Replies heard(brain::NodeId from, brain::NodeId to, const messages::StoreMessage& message) {
    const std::string text = std::visit([](const auto& each) { return messages::write(each); }, message);
    const auto came = messages::read<messages::StoreMessage>(text);
    EXPECT_TRUE(came.ok()) << came.status();
    return std::visit([&](const auto& each) { return stores_[to].on_message(from, each); }, *came);
  }
  std::vector<std::string> answers() { return std::exchange(answers_, {}); }

  struct OnTheWire {
    brain::NodeId from;
    brain::NodeId to;
    messages::StoreMessage message;
  };
  std::vector<SharedStore> stores_;
  std::deque<OnTheWire> wire_;
  std::vector<std::string> answers_;
};

TEST_F(SharedStoreTest, what_one_node_sets_every_node_gets) {
  generation_begins({0, 1, 2});
  for (int i = 0; i < 50; ++i) {
    const std::string key = absl::StrFormat("1/key%d", i);
    ask(i % 3, 1, "set", key, std::string("a\0b", 3));
    for (brain::NodeId node = 0; node < kNodes; ++node) {
      answers();
      ask(node, 2, "get", key);
      EXPECT_THAT(answers(), ElementsAre(absl::StrFormat("worker %d question 2: ", node) + std::string("a\0b", 3)));
    }
  }
  for (const SharedStore& store : stores_) {
    EXPECT_GT(store.size(), 0) << "a node that keeps nothing";
  }
  EXPECT_EQ(stores_[0].size() + stores_[1].size() + stores_[2].size(), 50) << "a key has one home";
}

TEST_F(SharedStoreTest, a_get_waits_for_a_set_on_another_node) {
  generation_begins({0, 1, 2});
  for (brain::NodeId node = 0; node < kNodes; ++node) {
    ask(node, 1, "get", "1/k");
  }
  EXPECT_THAT(answers(), IsEmpty());
  ask(1, 2, "set", "1/k", "v");
  EXPECT_THAT(answers(), testing::UnorderedElementsAre("worker 0 question 1: v", "worker 1 question 1: v",
                                                       "worker 2 question 1: v", "worker 1 question 2: "));
}

TEST_F(SharedStoreTest, adds_of_all_nodes_are_one_sum) {
  generation_begins({0, 1, 2});
  for (brain::NodeId node = 0; node < kNodes; ++node) {
    ask(node, 1, "add", "1/n", "2");
  }
  EXPECT_THAT(answers(), ElementsAre("worker 0 question 1: 2", "worker 1 question 1: 4", "worker 2 question 1: 6"));
}

TEST_F(SharedStoreTest, a_count_is_of_all_nodes) {
  generation_begins({0, 1, 2});
  for (int i = 0; i < 20; ++i) {
    ask(0, 1, "set", absl::StrFormat("1/%d", i), "v");
  }
  answers();
  ask(2, 7, "count", "");
  EXPECT_THAT(answers(), ElementsAre("worker 2 question 7: 20"));
}

TEST_F(SharedStoreTest, a_count_that_waits_for_a_lost_node_is_asked_anew_when_the_next_generation_begins) {
  generation_begins({0, 1, 2});
  for (int i = 0; i < 20; ++i) {
    ask(0, 1, "set", absl::StrFormat("1/%d", i), "v");
  }
  answers();
  take(0, stores_[0].ask({0, 7, "count", ""}));
  ASSERT_EQ(wire_.size(), 2U);
  wire_.pop_back();  // node 2 is lost, and its request with it
  deliver();
  EXPECT_THAT(answers(), IsEmpty());
  const size_t left = stores_[0].size() + stores_[1].size();
  generation_begins({0, 1});
  deliver();
  EXPECT_THAT(answers(), ElementsAre(absl::StrFormat("worker 0 question 7: %d", left)));
}

TEST_F(SharedStoreTest, a_part_of_a_count_that_comes_too_late_is_no_answer) {
  generation_begins({0, 1, 2});
  take(0, stores_[0].ask({0, 7, "count", ""}));
  const auto asked = std::exchange(wire_, {});
  for (const auto& [from, to, message] : asked) {
    take(to, heard(from, to, message));
  }
  const auto late = std::exchange(wire_, {});
  generation_begins({0, 1, 2});
  deliver();
  EXPECT_THAT(answers(), ElementsAre("worker 0 question 7: 0"));
  for (const auto& [from, to, message] : late) {
    take(to, heard(from, to, message));
  }
  EXPECT_THAT(answers(), IsEmpty());
}

TEST_F(SharedStoreTest, a_key_of_the_job_is_on_node_0_whatever_nodes_a_generation_has) {
  ask(1, 1, "set", "job/once", "v");  // before the first generation
  generation_begins({0, 2});
  EXPECT_EQ(stores_[0].size(), 1);
  answers();
  ask(2, 1, "get", "job/once");
  EXPECT_THAT(answers(), ElementsAre("worker 2 question 1: v"));
}

TEST_F(SharedStoreTest, a_generation_over_takes_its_keys_along) {
  generation_begins({0, 1, 2});
  for (int i = 0; i < 20; ++i) {
    ask(0, 1, "set", absl::StrFormat("9/%d", i), "old");
    ask(0, 1, "set", absl::StrFormat("10/%d", i), "new");
  }
  ask(0, 1, "set", "job/x", "v");
  for (SharedStore& store : stores_) {
    store.drop_before(10);
  }
  EXPECT_EQ(stores_[0].size() + stores_[1].size() + stores_[2].size(), 21);
}

TEST_F(SharedStoreTest, a_worker_that_is_gone_is_forgotten_on_all_nodes) {
  generation_begins({0, 1, 2});
  for (int i = 0; i < 20; ++i) {
    ask(1, i, "get", absl::StrFormat("1/%d", i));
  }
  take(1, stores_[1].forget(1));
  deliver();
  for (int i = 0; i < 20; ++i) {
    ask(0, 100 + i, "set", absl::StrFormat("1/%d", i), "v");
  }
  for (const std::string& answer : answers()) {
    EXPECT_TRUE(answer.starts_with("worker 0 ")) << answer;
  }
}

TEST_F(SharedStoreTest, one_node_asks_nobody) {
  SharedStore alone(0);
  alone.set_homes({0});
  EXPECT_THAT(alone.ask({0, 1, "set", "1/k", "v"}).messages, IsEmpty());
  EXPECT_EQ(alone.ask({0, 2, "count", ""}).answers.at(0).value, "1");
}

}  // namespace
}  // namespace keepstep::agent
