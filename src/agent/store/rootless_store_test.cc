#include "agent/store/rootless_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

namespace keepstep::agent {
namespace {

using brain::NodeId;
using brain::WorkerId;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecondNs = 1'000'000'000;

// The agents of all nodes and the connections between them. A connection carries messages in order, and takes those
// that are on their way with it when it breaks.
class Agents {
 public:
  explicit Agents(NodeId count) : count_(count) {
    for (NodeId node = 0; node < count; ++node) {
      start(node);
    }
  }

  void start(NodeId node) {
    std::vector<std::string> names;
    for (NodeId each = 0; each < count_; ++each) {
      names.push_back(absl::StrFormat("node %d", each));
    }
    stores_.erase(node);
    stores_.emplace(node, RootlessStore(std::move(names), node, ++origins_));
  }
  void connect(NodeId a, NodeId b) {
    wires_[{a, b}] = {};
    wires_[{b, a}] = {};
    take(a, stores_.at(a).connected(b));
    take(b, stores_.at(b).connected(a));
  }
  void connect_all() {
    for (NodeId a = 0; a < count_; ++a) {
      for (NodeId b = 0; b < a; ++b) {
        if (!is_connected(a, b)) {
          connect(a, b);
        }
      }
    }
  }
  void cut(NodeId a, NodeId b) {
    wires_.erase({a, b});
    wires_.erase({b, a});
    take(a, stores_.at(a).disconnected(b, now_ns));
    take(b, stores_.at(b).disconnected(a, now_ns));
  }
  // The agent ends, and with it what its clients wait for.
  void kill(NodeId node) {
    for (NodeId other = 0; other < count_; ++other) {
      if (is_connected(node, other)) {
        wires_.erase({node, other});
        wires_.erase({other, node});
        take(other, stores_.at(other).disconnected(node, now_ns));
      }
    }
    for (const WorkerId client : std::exchange(clients_[node], {})) {
      std::erase_if(pending, [&](const auto& entry) { return entry.first.first == client; });
    }
    start(node);
  }
  bool is_connected(NodeId a, NodeId b) const { return wires_.contains({a, b}); }

  WorkerId client(NodeId node) {
    const WorkerId id = stores_.at(node).new_client();
    clients_[node].push_back(id);
    take(node, stores_.at(node).set_busy(true));
    return id;
  }
  void leave(NodeId node, WorkerId client) {
    std::erase(clients_[node], client);
    std::erase_if(pending, [&](const auto& entry) { return entry.first.first == client; });
    take(node, stores_.at(node).forget(client));
    take(node, stores_.at(node).set_busy(!clients_[node].empty()));
  }
  void ask(NodeId node, WorkerId client, uint64_t id, const std::string& op, const std::string& key,
           const std::string& value = "") {
    pending[{client, id}] = op;
    take(node, stores_.at(node).ask({client, id, op, key, value}));
  }
  void tick() {
    for (auto& [node, store] : stores_) {
      take(node, store.tick(now_ns));
    }
  }
  // Delivers the oldest message of the `which`-th connection that has one; false if there is none.
  bool deliver(size_t which = 0) {
    std::vector<std::pair<NodeId, NodeId>> full;
    for (const auto& [ends, wire] : wires_) {
      if (!wire.empty()) {
        full.push_back(ends);
      }
    }
    if (full.empty()) {
      return false;
    }
    const auto [from, to] = full[which % full.size()];
    const std::string text = wires_[{from, to}].front();
    wires_[{from, to}].pop_front();
    const auto message = messages::read<messages::ToRootlessStore>(text);
    EXPECT_TRUE(message.ok()) << message.status();
    take(to, stores_.at(to).on_message(from, *message));
    return true;
  }
  void deliver_all() {
    while (deliver()) {
    }
  }
  RootlessStore& store(NodeId node) { return stores_.at(node); }
  const std::vector<WorkerId>& clients(NodeId node) { return clients_[node]; }
  std::vector<std::string> told() { return std::exchange(told_, {}); }

  int64_t now_ns = 0;
  std::map<std::pair<WorkerId, uint64_t>, std::string> pending;  // questions without an answer, and their op
  std::function<void(const StoreAnswer&, const std::string& op)> on_answer = [](const auto&, const auto&) {};

 private:
  void take(NodeId node, const RootlessStore::Replies& replies) {
    for (const StoreAnswer& answer : replies.answers) {
      const auto asked = pending.find({answer.worker, answer.id});
      ASSERT_NE(asked, pending.end()) << "an answer to client " << answer.worker << " that waits for none";
      EXPECT_THAT(clients_[node], testing::Contains(answer.worker)) << "an answer at another node";
      on_answer(answer, asked->second);
      pending.erase(asked);
      told_.push_back(answer.ok ? answer.value : "no");
    }
    for (const RootlessStore::Failure& failure : replies.failures) {
      pending.erase({failure.client, failure.id});  // a count may fail at several nodes
      told_.push_back("failed: " + failure.because);
    }
    for (const auto& [to, message] : replies.messages) {
      const auto wire = wires_.find({node, to});
      ASSERT_NE(wire, wires_.end()) << "a message from " << node << " to " << to << ", which is not connected";
      wire->second.push_back(std::visit([](const auto& each) { return messages::write(each); }, message));
    }
  }

  const NodeId count_;
  std::map<NodeId, RootlessStore> stores_;
  std::map<NodeId, std::vector<WorkerId>> clients_;
  std::map<std::pair<NodeId, NodeId>, std::deque<std::string>> wires_;
  std::vector<std::string> told_;
  uint64_t origins_ = 0;
};

// Keys whose home is `home` on `count` nodes.
std::string key_at(NodeId home, NodeId count) {
  SharedStore store(0);
  std::vector<NodeId> homes;
  for (NodeId node = 0; node < count; ++node) {
    homes.push_back(node);
  }
  store.set_homes(std::move(homes));
  for (int i = 0;; ++i) {
    if (std::string key = absl::StrFormat("0/%d", i); store.home_of(key) == home) {
      return key;
    }
  }
}

TEST(RootlessStoreTest, a_question_waits_until_its_node_is_connected) {
  Agents agents(2);
  const WorkerId client = agents.client(0);
  agents.ask(0, client, 1, "set", key_at(1, 2), "v");
  agents.ask(0, client, 2, "get", key_at(1, 2));
  EXPECT_THAT(agents.told(), IsEmpty());
  agents.connect(1, 0);
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("", "v"));
  EXPECT_EQ(agents.store(1).size(), 1U);
}

TEST(RootlessStoreTest, a_cancelled_question_is_not_sent) {
  Agents agents(2);
  const WorkerId client = agents.client(0);
  for (uint64_t id = 1; id <= 3; ++id) {
    agents.ask(0, client, id, "add", key_at(1, 2), "1");
  }
  agents.store(0).cancel(client, 1);
  agents.store(0).cancel(client, 3);
  agents.connect(1, 0);
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("1"));
}

// A client of node 0 has set a key whose home is node 1.
class KeyElsewhereTest : public testing::Test {
 protected:
  KeyElsewhereTest() {
    agents.connect_all();
    agents.ask(0, client, 1, "set", key_at(1, 2), "v");
    agents.deliver_all();
    EXPECT_THAT(agents.told(), ElementsAre(""));
  }

  Agents agents{2};
  const WorkerId client = agents.client(0);
};

TEST_F(KeyElsewhereTest, what_a_broken_connection_carried_fails_and_the_keys_stay) {
  agents.ask(0, client, 2, "get", key_at(1, 2) + "x");
  agents.ask(0, client, 3, "get", key_at(1, 2));
  agents.told();
  agents.cut(0, 1);
  EXPECT_THAT(agents.told(), testing::Each("failed: the connection to the agent of node 1 broke"));
  agents.ask(0, client, 4, "get", key_at(1, 2));
  EXPECT_THAT(agents.told(), IsEmpty());
  agents.connect(1, 0);
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("v"));
}

TEST_F(KeyElsewhereTest, keys_of_an_agent_that_was_started_again_are_gone) {
  agents.kill(1);
  agents.ask(0, client, 2, "get", key_at(1, 2));
  agents.told();
  agents.connect(1, 0);
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("failed: the agent of node 1 was started again, and its keys are gone"));
  agents.ask(0, client, 3, "check", key_at(1, 2));
  EXPECT_THAT(agents.told(), SizeIs(1));
  agents.leave(0, client);  // the old keys are not needed any more
  agents.deliver_all();
  const WorkerId next = agents.client(0);
  agents.ask(0, next, 4, "check", key_at(1, 2));
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("no"));
  agents.ask(0, next, 5, "set", key_at(1, 2), "new");
  agents.deliver_all();
  agents.cut(0, 1);
  agents.connect(1, 0);
  agents.deliver_all();
  agents.told();
  agents.ask(0, next, 6, "get", key_at(1, 2));
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("new")) << "it is the agent that was asked since";
}

TEST_F(KeyElsewhereTest, an_agent_that_stays_away_fails_its_questions) {
  agents.client(1);
  agents.deliver_all();
  agents.cut(0, 1);
  agents.ask(0, client, 2, "get", key_at(1, 2));
  agents.now_ns = RootlessStore::kReturnNs;
  agents.tick();
  EXPECT_THAT(agents.told(), IsEmpty());
  agents.now_ns += kSecondNs;
  agents.tick();
  agents.ask(0, client, 3, "count", "");
  EXPECT_THAT(agents.told(), testing::Each("failed: the agent of node 1 is gone, and its keys with it"));
  EXPECT_THAT(agents.pending, IsEmpty());
  agents.connect(1, 0);  // it was the network
  agents.deliver_all();
  agents.ask(0, client, 4, "get", key_at(1, 2));
  agents.deliver_all();
  EXPECT_THAT(agents.told(), ElementsAre("v"));
}

TEST(RootlessStoreTest, keys_end_with_the_last_client_of_all_nodes) {
  Agents agents(3);
  agents.connect_all();
  const WorkerId first = agents.client(0);
  const WorkerId second = agents.client(2);
  agents.ask(0, first, 1, "set", key_at(1, 3), "v");
  agents.deliver_all();
  agents.leave(0, first);
  agents.deliver_all();
  EXPECT_FALSE(agents.store(0).idle());
  EXPECT_EQ(agents.store(1).size(), 1U) << "node 2 has a client";
  agents.leave(2, second);
  agents.deliver_all();
  for (const NodeId node : {0, 1, 2}) {
    EXPECT_TRUE(agents.store(node).idle());
    EXPECT_EQ(agents.store(node).size(), 0U);
  }
}

TEST_F(KeyElsewhereTest, keys_that_ended_while_a_node_was_cut_off_are_missed) {
  agents.cut(0, 1);
  agents.now_ns = RootlessStore::kReturnNs + kSecondNs;
  agents.tick();
  EXPECT_EQ(agents.store(1).size(), 0U) << "node 1 has no clients, and takes node 0 for gone";
  agents.connect(1, 0);
  agents.deliver_all();
  agents.told();
  agents.ask(0, client, 2, "get", key_at(1, 2));
  EXPECT_THAT(agents.told(), ElementsAre(HasSubstr("its keys are gone")));
}

TEST(RootlessStoreTest, one_node_needs_no_connection) {
  Agents agents(1);
  const WorkerId client = agents.client(0);
  agents.ask(0, client, 1, "add", "0/k", "2");
  agents.ask(0, client, 2, "count", "");
  EXPECT_THAT(agents.told(), ElementsAre("2", "1"));
  agents.leave(0, client);
  EXPECT_TRUE(agents.store(0).idle());
}

// Whatever order messages, breaks, ends and returns come in: each question has at most one result; a node never loses
// keys without being told, so the sums that it sees do not fall; and if no agent was away for too long, all sums are
// right, and no question waits once all agents are connected and all keys are set. The failure's seed repeats it.
TEST(RootlessStoreTest, random_schedules) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t limit) { return random() % limit; };
    const auto count = static_cast<NodeId>(2 + below(3));
    Agents agents(count);
    std::map<WorkerId, uint64_t> ids;
    bool lost_keys = false;
    std::map<NodeId, uint64_t> seen;  // the highest sum; of nodes whose clients have not all left since
    uint64_t added = 0;
    uint64_t asked_to_add = 0;
    agents.on_answer = [&](const StoreAnswer& answer, const std::string& op) {
      if (op == "add") {
        ++added;
        const uint64_t sum = std::stoull(answer.value);
        const NodeId node = answer.worker % count;
        EXPECT_LE(sum, asked_to_add);
        EXPECT_GT(sum, seen[node]) << "node " << node << " lost keys and was not told";
        seen[node] = sum;
      }
    };
    const WorkerId keeps_busy = agents.client(0);
    if (below(2) == 0) {  // else nodes that do not know of it may let keys end
      agents.connect_all();
      agents.deliver_all();
    } else {
      lost_keys = true;
    }
    const bool may_kill = below(2) == 0;
    for (int step = 0; step < 200; ++step) {
      const auto node = static_cast<NodeId>(below(count));
      const auto other = static_cast<NodeId>((node + 1 + below(count - 1)) % count);
      switch (below(12)) {
        case 0:
          if (agents.is_connected(node, other)) {
            agents.cut(node, other);
          }
          break;
        case 1:
          if (may_kill && below(8) == 0) {
            agents.kill(node);
            seen.erase(node);
            lost_keys = true;
          }
          break;
        case 2:
          if (may_kill) {
            agents.now_ns += static_cast<int64_t>(below(20)) * kSecondNs;
            agents.tick();
            lost_keys = true;  // perhaps
          }
          break;
        case 3:
          agents.client(node);
          break;
        case 4:
          if (!agents.clients(node).empty() && below(3) == 0) {
            const WorkerId client = agents.clients(node)[below(agents.clients(node).size())];
            if (client != keeps_busy) {
              agents.leave(node, client);
              if (agents.clients(node).empty()) {
                seen.erase(node);
              }
            }
          }
          break;
        case 5:
        case 6:
          if (!agents.is_connected(node, other)) {
            agents.connect(node, other);
          }
          break;
        case 7:
        case 8:
        case 9: {
          if (agents.clients(node).empty()) {
            break;
          }
          const WorkerId client = agents.clients(node)[below(agents.clients(node).size())];
          const char* op = std::vector{"set", "get", "check", "wait", "count", "delete"}[below(6)];
          agents.ask(node, client, ++ids[client], op, absl::StrFormat("0/%d", below(6)), "v");
          if (below(2) == 0) {
            ++asked_to_add;
            agents.ask(node, client, ++ids[client], "add", "0/sum", "1");
          }
          break;
        }
        default:
          agents.deliver(below(1000));
      }
    }
    agents.connect_all();
    agents.deliver_all();
    const WorkerId last = agents.client(0);
    for (int key = 0; key < 6; ++key) {
      agents.ask(0, last, 1000 + static_cast<uint64_t>(key), "set", absl::StrFormat("0/%d", key), "v");
    }
    agents.deliver_all();
    if (!lost_keys) {
      uint64_t sum = 0;
      agents.on_answer = [&](const StoreAnswer& answer, const std::string&) { sum = std::stoull(answer.value); };
      agents.ask(0, last, 2000, "add", "0/sum", "0");
      agents.deliver_all();
      EXPECT_GE(sum, added) << "an add that was answered did not count";
      EXPECT_LE(sum, asked_to_add) << "an add counted twice";
      EXPECT_THAT(agents.pending, IsEmpty());
    }
    for (NodeId node = 0; node < count; ++node) {
      for (const WorkerId client : std::vector<WorkerId>(agents.clients(node))) {
        agents.leave(node, client);
      }
    }
    agents.deliver_all();
    for (NodeId node = 0; node < count; ++node) {
      EXPECT_TRUE(agents.store(node).idle());
      EXPECT_EQ(agents.store(node).size(), 0U);
    }
    agents.on_answer = [](const auto&, const auto&) {};
    const WorkerId next = agents.client(0);  // of the next start of the job
    agents.deliver_all();
    agents.told();
    for (const int part : {0, 1}) {
      for (int key = 0; key < 6; ++key) {
        agents.ask(0, next, static_cast<uint64_t>(10 * part + key), part == 0 ? "set" : "get",
                   absl::StrFormat("0/%d", key), "v");
      }
      agents.deliver_all();
      for (NodeId node = 1; node < count && part == 0; ++node) {
        agents.cut(0, node);
        agents.connect(0, node);
      }
      agents.deliver_all();
    }
    EXPECT_THAT(agents.told(), testing::AllOf(SizeIs(12), testing::Each(testing::AnyOf("", "v"))));
    if (testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace keepstep::agent
