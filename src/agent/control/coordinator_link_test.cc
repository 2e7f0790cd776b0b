// The agent's link to a real coordinator with the real brain, on the loopback.
#include "agent/control/coordinator_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/token.h"
#include "coordinator/coordinator.h"
#include "net/listener.h"
#include "observe/journal.h"
#include "proto/peers.h"

namespace keepstep::agent {
namespace {

using namespace std::chrono_literals;
using brain::Identity;
using brain::StateKind;
using coordinator::Coordinator;
using coordinator::CoordinatorConfig;

constexpr brain::NodeId kNode = 3;
net::SharedKey key_of(const char* token) { return net::SharedKey::control(*JobToken::parse(token), "run 7"); }
const net::SharedKey kKey = key_of("the token of this job, in a test");
const net::SharedKey kOtherKey = key_of("the token of another job altogether");

std::shared_ptr<const net::TlsContext> tls_of(const net::SharedKey& key = kKey) {
  return *net::TlsContext::create(key);
}

// Everything received on a link, in order; a test waits for what it expects.
class Inbox {
 public:
  CoordinatorLink::OnEffect on_effect() {
    return [this](brain::Effect effect) {
      const std::lock_guard lock(mutex_);
      effects_.push_back(std::move(effect));
      changed_.notify_all();
    };
  }
  CoordinatorLink::OnLost on_lost() {
    return [this](std::string why) {
      const std::lock_guard lock(mutex_);
      lost_ = std::move(why);
      changed_.notify_all();
    };
  }

  // How the test's agent handles an order to kill; next() calls it.
  std::function<void(brain::WorkerId)> on_kill = [](brain::WorkerId) {};

  // The next effect other than a kill; it must be an `E`. The brain repeats what is not answered in time, so this skips
  // repeated effects of the previous kind.
  template <class E>
  E next() {
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, 20s, [this] { return !effects_.empty(); })) {
      brain::Effect effect = std::move(effects_.front());
      effects_.pop_front();
      if (const auto* kill = std::get_if<brain::Kill>(&effect)) {
        lock.unlock();
        on_kill(kill->worker);
        lock.lock();
        continue;
      }
      if (const E* wanted = std::get_if<E>(&effect)) {
        newest_kind_ = effect.index();
        return *wanted;
      }
      if (effect.index() != newest_kind_) {
        ADD_FAILURE() << "another effect came: number " << effect.index();
        return E{};
      }
    }
    ADD_FAILURE() << "no such effect came";
    return E{};
  }

  std::string lost() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [this] { return lost_.has_value(); });
    return lost_.value_or("(not lost)");
  }
  bool has_lost() {
    const std::lock_guard lock(mutex_);
    return lost_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<brain::Effect> effects_;
  size_t newest_kind_ = std::variant_npos;
  std::optional<std::string> lost_;
};

class CoordinatorLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "link-" + to_hex(random_nonce());
    journal_ = *observe::Journal::open(directory_, 0);
  }
  void TearDown() override {
    link_.reset();
    coordinator_.reset();
    std::filesystem::remove_all(directory_);
  }

  void start(uint32_t world_size, uint32_t spares, const std::string& listen = "127.0.0.1:0") {
    CoordinatorConfig config{.listen = listen, .key = kKey};
    config.membership.term = 5;
    config.membership.world_size = world_size;
    config.membership.spares = spares;
    config.membership.ladder.replacements_per_step = 1'000'000;
    auto started = Coordinator::start(std::move(config), journal_.get());
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
  }
  StatusOr<std::unique_ptr<CoordinatorLink>> connect(const std::string& address, const net::SharedKey& key = kKey,
                                                     std::chrono::milliseconds timeout = 20s) {
    return CoordinatorLink::connect(address, kNode, "node-c", tls_of(key), inbox_.on_effect(), inbox_.on_lost(),
                                    timeout);
  }
  void attend() {
    auto link = connect(coordinator_->address());
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
    inbox_.on_kill = [this](brain::WorkerId worker) { link_->send(brain::WorkerDied{worker, 0, 9, 0, "pidfd", ""}); };
  }

  // Goes from an empty job to generation 1 running; returns its members by rank.
  std::vector<brain::Member> run_a_job(uint32_t workers) {
    link_->send(brain::NodeJoined{kNode});
    for (uint32_t i = 0; i < workers; ++i) {
      const auto spawn = inbox_.next<brain::Spawn>();
      link_->send(brain::WorkerParked{spawn.worker, 1000 + spawn.worker});
      link_->send(brain::WorkerRecoverable{spawn.worker});
    }
    return form({StateKind::kEmpty, 0}).members;
  }

  // Answers the next Prepare: members that are not newcomers hold `state`.
  brain::Prepare form(brain::StateWord state) {
    auto prepare = inbox_.next<brain::Prepare>();
    brain::Ready ready{prepare.identity, {}};
    for (const brain::Member& member : prepare.members) {
      ready.members.push_back({member.worker, member.newcomer ? brain::StateWord{} : state});
    }
    link_->send(ready);
    const auto activate = inbox_.next<brain::Activate>();
    EXPECT_EQ(activate.identity, prepare.identity);
    link_->send(brain::Formed{prepare.identity});
    return prepare;
  }

  std::string directory_;
  Inbox inbox_;
  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorLink> link_;
};

TEST_F(CoordinatorLinkTest, a_job_starts_loses_a_rank_replaces_it_and_ends) {
  start(2, 1);
  attend();
  EXPECT_EQ(link_->term(), 5u);
  const std::vector<brain::Member> table = run_a_job(3);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[1].node, kNode);

  const Identity first{5, 1};
  link_->send(brain::Progress{first, 41});
  link_->send(brain::WorkerDied{table[1].worker, 1001, 9, 0, "robust mutex", ""});
  const auto seal = inbox_.next<brain::Seal>();
  EXPECT_EQ(seal.identity, first);

  const brain::StepWord yes{first, 42, brain::Vote::kYes, true};
  const brain::StateWord clean{StateKind::kClean, 41};
  link_->send(brain::Sealed{kNode, first, {{0, table[0].worker, yes, clean}, {1, table[1].worker, yes, clean}}});
  const auto decide = inbox_.next<brain::Decide>();
  EXPECT_EQ(decide.identity, first);
  EXPECT_EQ(decide.verdict.version, 42u);
  EXPECT_TRUE(decide.verdict.forward);

  const auto prepare = form({StateKind::kClean, 42});
  EXPECT_EQ(prepare.identity, (Identity{5, 2}));
  ASSERT_EQ(prepare.members.size(), 2u);
  EXPECT_EQ(prepare.members[0].worker, table[0].worker);
  EXPECT_TRUE(prepare.members[1].newcomer);
  EXPECT_EQ(prepare.members[1].previous, table[1].worker);

  link_->send(brain::Progress{prepare.identity, 43});
  const auto spare = inbox_.next<brain::Spawn>();
  EXPECT_TRUE(spare.spare);
  for (const brain::Member& member : prepare.members) {
    link_->send(brain::WorkerFinished{member.worker, prepare.identity});
  }
  EXPECT_EQ(inbox_.next<brain::Release>().identity, prepare.identity);
  for (const brain::Member& member : prepare.members) {
    link_->send(brain::WorkerExited{member.worker});
  }
  EXPECT_EQ(inbox_.next<brain::EndJob>().exit_code, 0);
  link_->close();
  EXPECT_FALSE(inbox_.has_lost());
}

TEST_F(CoordinatorLinkTest, every_generation_comes_with_the_whole_rank_table_though_only_the_first_travels_whole) {
  start(1, 0);
  attend();
  const brain::NodeEndpoint endpoint{brain::ipv4(10, 0, 0, 3), 20000};
  link_->send(brain::NodeJoined{kNode, endpoint});
  brain::WorkerId worker = inbox_.next<brain::Spawn>().worker;
  for (uint32_t generation = 1; generation <= 20; ++generation) {
    link_->send(brain::WorkerRecoverable{worker});
    link_->send(brain::WorkerParked{worker, 1000 + worker});
    const auto prepare = inbox_.next<brain::Prepare>();
    EXPECT_EQ(prepare.identity, (Identity{5, generation}));
    ASSERT_EQ(prepare.table.world_size(), 1u);
    EXPECT_EQ(prepare.table.locate(0), (brain::RankTable::Location{kNode, 0, endpoint.address, endpoint.port_base}));
    ASSERT_EQ(prepare.members.size(), 1u);
    EXPECT_EQ(prepare.members[0].worker, worker);
    link_->send(brain::WorkerDied{worker, 1, 9, 0, "robust mutex", ""});
    inbox_.next<brain::Seal>();
    link_->send(brain::Sealed{kNode, prepare.identity, {}});
    inbox_.next<brain::Decide>();
    worker = inbox_.next<brain::Spawn>().worker;
  }
}

TEST_F(CoordinatorLinkTest, a_wrong_token_is_a_clear_error_on_the_agents_side_too) {
  start(1, 0);
  const auto link = connect(coordinator_->address(), kOtherKey);
  ASSERT_EQ(link.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(link.status().message()),
              testing::AllOf(testing::HasSubstr("the coordinator at " + coordinator_->address() +
                                                " does not know the job token of node 3 (node-c)"),
                             testing::HasSubstr("the same --token-file and --rdzv-id")));
  coordinator_->stop();
  EXPECT_EQ(coordinator_->refused(), 3u) << "anybody on the way can make up a refusal: one is not believed";
}

TEST_F(CoordinatorLinkTest, nobody_there_is_a_clear_error_after_the_timeout) {
  start(1, 0);
  const std::string address = coordinator_->address();
  coordinator_.reset();
  const auto link = connect(address, kKey, 100ms);
  ASSERT_EQ(link.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(link.status().message()),
              testing::HasSubstr("Connection refused; is the address right, and does it run?"));
}

// As a listener does if it has too many strangers or was stopped for long: our side of the handshake is over.
TEST_F(CoordinatorLinkTest, who_is_dropped_before_a_greeting_tries_again) {
  std::atomic<int> dropped = 0;
  const auto listener = *net::Listener::start(*net::parse_address("127.0.0.1:0"), *net::TlsContext::create(kKey), {},
                                              [&](const net::TlsStream&) { ++dropped; });
  const auto link = connect(text_of(listener->address()), kKey, 500ms);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kDeadlineExceeded) << link.status();
  EXPECT_GT(dropped, 3);
}

TEST_F(CoordinatorLinkTest, a_second_agent_of_the_same_node_is_told_so) {
  start(1, 0);
  attend();
  const auto link = connect(coordinator_->address());
  ASSERT_EQ(link.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(link.status().message().find("node 3 is connected already"), std::string::npos) << link.status();
}

TEST_F(CoordinatorLinkTest, an_agent_without_a_number_gets_one_and_then_attends_with_it) {
  CoordinatorConfig config{.listen = "127.0.0.1:0", .key = kKey};
  config.membership.nodes = 3;
  coordinator_ = *Coordinator::start(std::move(config), journal_.get());
  const auto ask = [&](const net::SharedKey& key = kKey) {
    return CoordinatorLink::connect(
        coordinator_->address(), proto::kAnyNode, "node-x", tls_of(key), [](const brain::Effect&) {},
        [](const std::string&) {}, 20s);
  };
  auto first = ask();
  auto second = ask();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ((*first)->node(), 1u);
  EXPECT_EQ((*second)->node(), 2u);
  const auto third = ask();
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted) << third.status();
  EXPECT_THAT(std::string(third.status().message()), testing::HasSubstr("node 1 is 'node-x'"));
  EXPECT_EQ(coordinator_->refused(), 1u) << "one that is given back is no refusal";

  Inbox inbox;
  auto attending =
      CoordinatorLink::connect(coordinator_->address(), 1, "node-x", tls_of(), inbox.on_effect(), inbox.on_lost(), 20s);
  ASSERT_TRUE(attending.ok()) << attending.status();
  first->reset();
  EXPECT_FALSE(ask().ok()) << "node 1 attends, node 2 is kept for another";
  second->reset();
  const auto again = ask();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->node(), 2u);
  EXPECT_TRUE(absl::IsUnauthenticated(ask(kOtherKey).status()));
  attending->reset();
}

TEST_F(CoordinatorLinkTest, an_agent_may_come_back_once_it_has_left) {
  start(1, 0);
  for (int i = 0; i < 20; ++i) {
    attend();
    link_->close();
  }
}

TEST_F(CoordinatorLinkTest, who_comes_once_the_job_has_ended_is_told_how_it_ended) {
  start(1, 0);
  attend();
  link_->send(brain::StopRequested{7, "enough"});
  EXPECT_EQ(inbox_.next<brain::EndJob>().exit_code, 7);
  Inbox late;
  const auto other =
      CoordinatorLink::connect(coordinator_->address(), 8, "node-h", tls_of(), late.on_effect(), late.on_lost(), 20s);
  ASSERT_TRUE(other.ok()) << other.status();
  const auto end = late.next<brain::EndJob>();
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.message, "enough");
}

TEST_F(CoordinatorLinkTest, an_agent_that_abandons_the_job_is_a_lost_node_and_frees_its_place) {
  start(1, 0);
  attend();
  link_->send(brain::NodeJoined{kNode});
  (void)inbox_.next<brain::Spawn>();
  link_->abandon();
  link_->send(brain::NodeJoined{kNode});  // goes nowhere
  EXPECT_FALSE(inbox_.has_lost()) << "it was our own doing";
  link_.reset();
  // The place is free as soon as the coordinator has seen the end of the stream.
  StatusOr<std::unique_ptr<CoordinatorLink>> again = absl::AlreadyExistsError("");
  while (absl::IsAlreadyExists(again.status())) {
    again = connect(coordinator_->address());
  }
  ASSERT_TRUE(again.ok()) << again.status();
  again->reset();
  coordinator_->stop();
  std::ifstream lines(directory_ + "/journal.jsonl");
  const std::string text{std::istreambuf_iterator<char>(lines), {}};
  EXPECT_NE(text.find("\"kind\":\"node\""), std::string::npos) << text;
}

TEST_F(CoordinatorLinkTest, agents_send_each_other_messages) {
  start(1, 0);
  attend();
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<brain::NodeId, std::string>> came;
  Inbox ignored;
  auto other = CoordinatorLink::connect(coordinator_->address(), 8, "node-h", tls_of(), ignored.on_effect(),
                                        ignored.on_lost(), 20s, [&](brain::NodeId from, std::string message) {
                                          const std::lock_guard lock(mutex);
                                          came.emplace_back(from, std::move(message));
                                          changed.notify_all();
                                        });
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(link_->route(8, std::string(4 << 20, 'x')).code(), absl::StatusCode::kResourceExhausted);
  const std::string long_one(3 << 20, 'y');
  ASSERT_TRUE(link_->route(8, "first").ok());
  ASSERT_TRUE(link_->route(8, long_one).ok());
  ASSERT_TRUE((*other)->route(8, "to myself").ok());
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, 20s, [&] { return came.size() == 3; }));
  std::erase(came, std::make_pair(brain::NodeId{8}, std::string("to myself")));
  EXPECT_EQ(came, (std::vector<std::pair<brain::NodeId, std::string>>{{kNode, "first"}, {kNode, long_one}}));
}

TEST_F(CoordinatorLinkTest, a_coordinator_that_stops_is_noticed) {
  start(1, 0);
  attend();
  coordinator_->stop();
  EXPECT_EQ(inbox_.lost(),
            "the coordinator at " + coordinator_->address() + " ended the connection: the coordinator stops");
  link_->send(brain::NodeJoined{kNode});  // goes nowhere and does no harm
}

// The latency that every recovery pays: death noticed -> order to seal.
class Latency : public CoordinatorLinkTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string listen() const {
    if (std::string(GetParam()) == "tcp") {
      return "127.0.0.1:0";
    }
    std::filesystem::create_directory(directory_ + "/private");
    std::filesystem::permissions(directory_ + "/private", std::filesystem::perms::owner_all);
    return "unix:" + directory_ + "/private/coordinator";
  }
};

TEST_P(Latency, of_a_death_until_the_order_to_seal_is_well_below_a_millisecond) {
  start(2, 0, listen());
  attend();
  std::vector<brain::Member> table = run_a_job(2);
  Identity identity{5, 1};
  std::vector<double> micros;
  for (int round = 0; round < 1000; ++round) {
    const int64_t started_ns = monotonic_ns();
    link_->send(brain::WorkerDied{table[1].worker, 1, 9, 0, "robust mutex", ""});
    inbox_.next<brain::Seal>();
    micros.push_back(static_cast<double>(monotonic_ns() - started_ns) / 1e3);
    link_->send(brain::Sealed{kNode, identity, {{0, table[0].worker, {identity, 1}, {StateKind::kClean, 0}}}});
    inbox_.next<brain::Decide>();
    const auto spawn = inbox_.next<brain::Spawn>();
    link_->send(brain::WorkerRecoverable{spawn.worker});
    link_->send(brain::WorkerParked{spawn.worker, 1000 + spawn.worker});
    const brain::Prepare prepare = form({StateKind::kClean, 0});
    table = prepare.members;
    identity = prepare.identity;
  }
  std::sort(micros.begin(), micros.end());
  printf("WorkerDied -> Seal over %s: median %.0f us, p99 %.0f us, worst %.0f us\n", GetParam(), micros[500],
         micros[990], micros.back());
  EXPECT_LT(micros[500], 20'000) << "a hang, not a busy machine";
}

INSTANTIATE_TEST_SUITE_P(Addresses, Latency, testing::Values("tcp", "unix"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keepstep::agent
