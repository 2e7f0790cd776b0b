// The coordinator over real connections on loopback, with agents, strangers and liars that use the raw protocol.
#include "coordinator/coordinator.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/token.h"
#include "net/connection.h"
#include "proto/control.pb.h"
#include "proto/convert.h"
#include "proto/peers.h"
#include "proto/rank_table_wire.h"

namespace keepstep::coordinator {
namespace {

using absl::StatusCode;

net::SharedKey key_of(const char* token, const char* rdzv_id = "run 7") {
  return net::SharedKey::control(*JobToken::parse(token), rdzv_id);
}
const net::SharedKey kKey = key_of("the token of this job, in a test");

net::Deadline soon() { return net::Deadline::after(std::chrono::seconds(20)); }

StatusOr<net::TlsStream> connect_to(const std::string& address, const net::SharedKey& key) {
  return net::connect_tls(*net::parse_address(address), *net::TlsContext::create(key), soon());
}

// A member of the job that follows no rules: sends exactly what a test tells it to.
class Peer {
 public:
  explicit Peer(const std::string& address)
      : connection_(*connect_to(address, kKey), {.max_message_bytes = 64 << 20}) {}

  bool say_bytes(const std::string& bytes) { return connection_.send(bytes, soon()).ok(); }
  bool say(const control::FromAgent& message) { return say_bytes(message.SerializeAsString()); }
  bool say(const brain::Event& event, brain::NodeId node, uint32_t term) {
    return say(proto::to_wire(event, node, {term, 0}));
  }

  // The next message; false: it was the coordinator's last message, or the connection ended.
  bool hear(control::FromCoordinator* message) {
    const StatusOr<std::string> bytes = connection_.receive(soon());
    if (!bytes.ok()) {
      ended_.Update(bytes.status());
      return false;
    }
    EXPECT_TRUE(message->ParseFromString(*bytes));
    if (message->has_end()) {
      said_last_ = Status(static_cast<StatusCode>(message->end().code()), message->end().why());
      return false;
    }
    return true;
  }

  bool greet(const net::Greeting& greeting) { return say_bytes(*greeting.encode()); }
  // The coordinator's greeting; std::nullopt: something else arrived.
  std::optional<net::Greeting> hear_greeting() {
    const StatusOr<std::string> bytes = connection_.receive(soon());
    const StatusOr<net::Greeting> greeting = net::Greeting::decode(bytes.value_or(""));
    return greeting.ok() ? std::optional(*greeting) : std::nullopt;
  }
  bool hello(brain::NodeId node) {
    control::FromAgent message;
    message.set_node(node);
    message.mutable_hello()->set_node_name("node-" + std::to_string(node));
    return say(message);
  }
  // True if the coordinator answers with a greeting that an agent accepts.
  bool greet_as(brain::NodeId node) {
    node_ = node;
    if (!greet(proto::greeting_of(node))) {
      return false;
    }
    const std::optional<net::Greeting> greeting = hear_greeting();
    if (!greeting.has_value()) {
      return false;
    }
    term_ = greeting->term;
    net::Greeting expected = proto::greeting_of(node).answer();
    expected.term = term_;
    return *greeting == expected;
  }
  bool attend(brain::NodeId node) {
    control::FromCoordinator welcome;
    return greet_as(node) && hello(node) && hear(&welcome) && welcome.has_welcome();
  }

  // Reads the coordinator's messages until it ends the connection. Returns its last message, or, if there is none, how
  // the connection ended.
  Status end() {
    control::FromCoordinator rest;
    while (ended_.ok()) {
      hear(&rest);
    }
    return said_last_.value_or(ended_);
  }

  void break_off() { connection_.abort(); }

  // Connects as a user's command.
  bool come_as_command() { return attend(proto::kCommand); }

  bool ask(const std::string& request) {
    control::FromAgent question;
    question.set_node(proto::kCommand);
    question.set_term(term_);
    question.mutable_ask()->set_request(request);
    return say(question);
  }

  // The whole answer; std::nullopt: the connection ended first.
  std::optional<std::string> answer() {
    std::string text;
    control::FromCoordinator part;
    while (hear(&part)) {
      text += part.answer().part();
      if (text.size() == part.answer().bytes()) {
        return text;
      }
    }
    return std::nullopt;
  }

  // OUT_OF_RANGE: the coordinator ended its side too.
  Status leave() {
    control::FromAgent goodbye;
    goodbye.set_node(node_);
    goodbye.set_term(term_);
    goodbye.mutable_leave();
    say(goodbye);
    EXPECT_TRUE(connection_.end_sends(soon()).ok());
    return end();
  }

 private:
  net::Connection connection_;
  brain::NodeId node_ = 0;
  uint32_t term_ = 0;
  std::optional<Status> said_last_;
  Status ended_;
};

class CoordinatorTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "coordinator-" + to_hex(random_nonce());
    journal_ = *observe::Journal::open(directory_, 0);
    start(config());
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(directory_);
  }

  void start(CoordinatorConfig config) {
    coordinator_.reset();
    StatusOr<std::unique_ptr<Coordinator>> started = Coordinator::start(std::move(config), journal_.get());
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
  }
  static CoordinatorConfig config() {
    CoordinatorConfig config{.key = kKey};
    config.membership.term = kTerm;
    return config;
  }

  std::vector<nlohmann::json> journal_lines(const std::string& event) const {
    EXPECT_TRUE(journal_->flush(std::chrono::minutes(1)));
    std::vector<nlohmann::json> lines;
    std::ifstream file(directory_ + "/journal.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (auto json = nlohmann::json::parse(line); json["event"] == event) {
        lines.push_back(std::move(json));
      }
    }
    return lines;
  }

  std::vector<nlohmann::json> wait_for_journal(const std::string& event) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (journal_lines(event).empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return journal_lines(event);
  }

  // A new agent attends and gets its first order.
  void expect_the_job_goes_on(brain::NodeId node = 1) {
    Peer agent(coordinator_->address());
    ASSERT_TRUE(agent.attend(node));
    ASSERT_TRUE(agent.say(brain::NodeJoined{node}, node, kTerm));
    control::FromCoordinator order;
    ASSERT_TRUE(agent.hear(&order));
    EXPECT_TRUE(order.effect().has_spawn()) << order.ShortDebugString();
    EXPECT_EQ(order.node(), node);
    EXPECT_EQ(order.term(), kTerm);
    EXPECT_TRUE(absl::IsOutOfRange(agent.leave()));
  }

  // Exactly one refusal, counted, with a journal line that contains `why` and the peer's address.
  void expect_one_refusal(const std::string& why, const std::string& of = "an agent from ") {
    EXPECT_EQ(coordinator_->refused(), 1u);
    const auto lines = journal_lines("refused");
    ASSERT_EQ(lines.size(), 1u);
    const std::string because = lines[0]["because"];
    EXPECT_NE(because.find(why), std::string::npos) << because;
    EXPECT_NE(because.find(of), std::string::npos) << because;
    EXPECT_NE(because.find("127.0.0.1:"), std::string::npos) << because;
    EXPECT_EQ(lines[0]["count"], 1);
    EXPECT_EQ(lines[0]["term"], kTerm);
  }

  static constexpr uint32_t kTerm = 5;
  std::string directory_;
  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, an_agent_that_proves_the_key_is_welcomed_and_gets_orders) { expect_the_job_goes_on(); }

// Two jobs that share a token file are strangers to each other.
class OtherKeys : public CoordinatorTest, public testing::WithParamInterface<net::SharedKey> {};

TEST_P(OtherKeys, are_refused_and_the_job_goes_on) {
  const auto stranger = connect_to(coordinator_->address(), GetParam());
  EXPECT_EQ(stranger.status().code(), StatusCode::kUnauthenticated) << stranger.status();
  wait_for_journal("refused");
  expect_one_refusal("it has another key: another token or another rendezvous id", "a stranger: ");
  expect_the_job_goes_on();
}

INSTANTIATE_TEST_SUITE_P(Keys, OtherKeys,
                         testing::Values(key_of("the token of another job altogether"),
                                         key_of("the token of this job, in a test", "run 8")),
                         [](const auto& info) { return info.index == 0 ? "of_another_token" : "of_another_id"; });

TEST_F(CoordinatorTest, who_only_looks_whether_somebody_listens_is_no_refusal) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(net::connect_to(*net::parse_address(coordinator_->address()), soon()).ok());
  }
  expect_the_job_goes_on();
  EXPECT_EQ(coordinator_->refused(), 0u);
}

TEST_F(CoordinatorTest, both_sides_say_who_they_are_and_whom_they_mean) {
  Peer agent(coordinator_->address());
  EXPECT_TRUE(agent.greet_as(3));
}

TEST_F(CoordinatorTest, a_member_that_a_relay_brought_here_is_refused) {
  Peer brought(coordinator_->address());
  net::Greeting to_another = proto::greeting_of(1);
  to_another.to = "agent 7";
  ASSERT_TRUE(brought.greet(to_another));
  const auto greeting = brought.hear_greeting();
  ASSERT_TRUE(greeting.has_value());
  EXPECT_EQ(greeting->from, proto::kCoordinatorName);
  EXPECT_EQ(brought.end().code(), StatusCode::kFailedPrecondition);
  expect_one_refusal("agent 7");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_hello_of_another_node_than_was_greeted_as_is_refused) {
  Peer liar(coordinator_->address());
  ASSERT_TRUE(liar.greet_as(1));
  liar.hello(2);
  EXPECT_EQ(liar.end().code(), StatusCode::kFailedPrecondition);
  expect_one_refusal("it greets as 'agent 1' and says hello as 'agent 2'");
}

TEST_F(CoordinatorTest, what_begins_without_a_greeting_is_refused) {
  Peer rude(coordinator_->address());
  rude.say(brain::StopRequested{1, "because I say so"}, 1, kTerm);
  EXPECT_EQ(rude.end().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(coordinator_->refused(), 1u);
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, an_event_before_the_hello_is_refused) {
  Peer hasty(coordinator_->address());
  ASSERT_TRUE(hasty.greet_as(1));
  hasty.say(brain::StopRequested{1, "because I say so"}, 1, kTerm);
  EXPECT_EQ(hasty.end().code(), StatusCode::kInvalidArgument);
  expect_one_refusal("it began with an event instead of a hello");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_hello_with_a_name_that_is_too_long_is_refused) {
  Peer verbose(coordinator_->address());
  ASSERT_TRUE(verbose.greet_as(1));
  control::FromAgent hello;
  hello.set_node(1);
  hello.mutable_hello()->set_node_name(std::string(proto::kMaxNodeNameBytes + 1, 'n'));
  verbose.say(hello);
  EXPECT_EQ(verbose.end().code(), StatusCode::kInvalidArgument);
  expect_one_refusal("a name of 257 bytes");
}

TEST_F(CoordinatorTest, a_malformed_message_is_refused) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  agent.say_bytes("\xff\xff\xff no protobuf at all");
  const Status status = agent.end();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a malformed message of 22 bytes");
  expect_one_refusal("a malformed message of 22 bytes");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, an_oversized_hello_is_refused) {
  Peer verbose(coordinator_->address());
  ASSERT_TRUE(verbose.greet_as(1));
  verbose.say_bytes(std::string(5 << 20, 'x'));
  EXPECT_FALSE(verbose.end().ok());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (coordinator_->refused() == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();  // the connection ends first; stop() ending it would not be counted
  }
  coordinator_->stop();
  expect_one_refusal("announced a message of 5242880 bytes; at most 4194304 are allowed");
}

TEST_F(CoordinatorTest, an_oversized_event_ends_its_connection_and_the_job_goes_on) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  control::FromAgent event;
  event.set_node(1);
  event.set_term(kTerm);
  event.mutable_event()->mutable_stop_requested()->set_because(std::string(5 << 20, 'x'));
  agent.say(event);
  EXPECT_FALSE(agent.end().ok());
  expect_the_job_goes_on(2);
  coordinator_->stop();
  std::map<int, std::string> why_by_node;
  for (const nlohmann::json& line : journal_lines("node_lost")) {
    why_by_node[line["lost_node"]] = line["because"];
  }
  EXPECT_NE(why_by_node[1].find("at most 4194304 are allowed"), std::string::npos) << why_by_node[1];
  EXPECT_EQ(why_by_node[2], "the agent left");
}

TEST_F(CoordinatorTest, an_event_of_another_term_is_dropped_and_counted) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  ASSERT_TRUE(agent.say(brain::StopRequested{1, "old"}, 1, kTerm - 1));
  ASSERT_TRUE(agent.say(brain::StopRequested{2, "new"}, 1, kTerm));
  control::FromCoordinator order;
  ASSERT_TRUE(agent.hear(&order));
  EXPECT_EQ(order.effect().end_job().exit_code(), 2);
  EXPECT_EQ(coordinator_->stale(), 1u);
  EXPECT_EQ(coordinator_->refused(), 0u);
}

TEST_F(CoordinatorTest, an_agent_that_speaks_for_another_node_is_refused) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  agent.say(brain::NodeJoined{2}, 2, kTerm);
  EXPECT_EQ(agent.end().code(), StatusCode::kInvalidArgument);
  expect_one_refusal("node 1 speaks for node 2");
  expect_the_job_goes_on(1);
}

TEST_F(CoordinatorTest, a_second_agent_of_a_node_is_refused_until_the_first_has_left) {
  Peer first(coordinator_->address());
  ASSERT_TRUE(first.attend(1));
  Peer second(coordinator_->address());
  EXPECT_FALSE(second.attend(1));
  EXPECT_EQ(second.end().code(), StatusCode::kAlreadyExists);
  expect_one_refusal("node 1 is connected already");
  EXPECT_TRUE(absl::IsOutOfRange(first.leave()));
  expect_the_job_goes_on(1);
}

TEST_F(CoordinatorTest, who_does_not_get_to_its_hello_is_let_go) {
  CoordinatorConfig hasty = config();
  hasty.handshake_timeout = std::chrono::milliseconds(300);
  start(std::move(hasty));
  Peer silent(coordinator_->address());
  EXPECT_EQ(silent.end().code(), StatusCode::kDeadlineExceeded);
  expect_one_refusal("it did not say hello in time");
  Peer slow(coordinator_->address());
  ASSERT_TRUE(slow.greet_as(1));
  EXPECT_EQ(slow.end().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(coordinator_->refused(), 2u);
}

// One agent with one rank, using the raw protocol: the table that it claims to hold decides what it is sent.
class RankTableTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    CoordinatorTest::SetUp();
    CoordinatorConfig hasty = config();
    hasty.membership.repeat_after = std::chrono::milliseconds(1);
    hasty.membership.ladder.replacements_per_step = 1000;
    start(std::move(hasty));
    agent_.emplace(coordinator_->address());
    ASSERT_TRUE(agent_->attend(1));
    say(brain::NodeJoined{1, {brain::ipv4(10, 0, 0, 1), 20000}});
  }
  void say(const brain::Event& event) {
    control::FromAgent message = proto::to_wire(event, 1, {kTerm, generation_});
    message.set_table(table_);
    ASSERT_TRUE(agent_->say(message));
  }
  // The next order of that kind; skips others.
  control::FromCoordinator hear(control::CoordinatorEffect::KindCase kind) {
    control::FromCoordinator order;
    while (agent_->hear(&order) && order.effect().kind_case() != kind) {
    }
    generation_ = order.generation();
    return order;
  }
  void park_what_is_spawned() {
    worker_ = hear(control::CoordinatorEffect::kSpawn).effect().spawn().worker();
    say(brain::WorkerRecoverable{worker_});
    say(brain::WorkerParked{worker_, 1000 + int64_t{worker_}});
  }
  // The worker dies and another takes its place; returns the Prepare that follows.
  control::FromCoordinator lose_the_rank() {
    say(brain::WorkerDied{worker_, 1, 9, 0, "pidfd", ""});
    say(brain::Sealed{1, {kTerm, hear(control::CoordinatorEffect::kSeal).generation()}, {}});
    park_what_is_spawned();
    return hear(control::CoordinatorEffect::kPrepare);
  }

  std::optional<Peer> agent_;
  brain::WorkerId worker_ = 0;
  uint32_t generation_ = 0;
  uint32_t table_ = 0;
};

TEST_F(RankTableTest, goes_out_whole_until_the_agent_says_that_it_holds_one_and_again_when_it_lost_it) {
  park_what_is_spawned();
  const auto first = hear(control::CoordinatorEffect::kPrepare);
  const auto whole = proto::decode_table(first.effect().prepare().table());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->identity, (brain::Identity{kTerm, 1}));
  EXPECT_EQ(whole->table.locate(0), (brain::RankTable::Location{1, 0, brain::ipv4(10, 0, 0, 1), 20000}));
  ASSERT_EQ(first.members_size(), 1);
  EXPECT_EQ(first.members(0).worker(), worker_);

  EXPECT_TRUE(lose_the_rank().effect().prepare().has_table()) << "it said nothing of a table";

  table_ = 2;
  const auto third = lose_the_rank();
  const auto delta = proto::decode_delta(third.effect().prepare().delta());
  ASSERT_TRUE(delta.ok()) << delta.status();
  EXPECT_EQ(delta->identity, (brain::Identity{kTerm, 3}));
  EXPECT_EQ(delta->base, 2u);
  EXPECT_TRUE(delta->delta.splices.empty());
  EXPECT_EQ(delta->result, proto::digest(whole->table));

  control::FromAgent lost;
  lost.set_node(1);
  lost.set_term(kTerm);
  lost.mutable_table_lost();
  ASSERT_TRUE(agent_->say(lost));
  control::FromCoordinator repeated;
  do {
    repeated = hear(control::CoordinatorEffect::kPrepare);
  } while (repeated.effect().prepare().has_delta());
  const auto again = proto::decode_table(repeated.effect().prepare().table());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->identity, (brain::Identity{kTerm, 3}));
  EXPECT_EQ(again->table, whole->table);
}

TEST_F(RankTableTest, goes_out_whole_on_a_new_stream) {
  park_what_is_spawned();
  hear(control::CoordinatorEffect::kPrepare);
  table_ = 1;
  EXPECT_TRUE(lose_the_rank().effect().prepare().has_delta());
  EXPECT_TRUE(absl::IsOutOfRange(agent_->leave()));
  agent_.emplace(coordinator_->address());
  ASSERT_TRUE(agent_->attend(1));
  table_ = 0;
  EXPECT_TRUE(hear(control::CoordinatorEffect::kPrepare).effect().prepare().has_table()) << "the repetition";
}

TEST_F(CoordinatorTest, a_message_for_another_agent_is_handed_on_with_its_sender) {
  Peer one(coordinator_->address());
  Peer two(coordinator_->address());
  ASSERT_TRUE(one.attend(1));
  ASSERT_TRUE(two.attend(2));
  control::FromAgent message;
  message.set_node(1);
  message.set_term(kTerm);
  message.mutable_routed()->set_peer(7);  // no such node: dropped without harm
  ASSERT_TRUE(one.say(message));
  message.mutable_routed()->set_peer(2);
  message.mutable_routed()->set_payload("good morning");
  ASSERT_TRUE(one.say(message));
  control::FromCoordinator heard;
  ASSERT_TRUE(two.hear(&heard));
  EXPECT_EQ(heard.routed().peer(), 1u);
  EXPECT_EQ(heard.routed().payload(), "good morning");
  EXPECT_EQ(heard.node(), 2u);
  EXPECT_EQ(heard.term(), kTerm);
  message.mutable_routed()->set_payload(std::string(proto::kMaxRoutedBytes + 1, 'x'));
  ASSERT_TRUE(one.say(message));
  EXPECT_EQ(one.end().code(), StatusCode::kInvalidArgument);
  expect_one_refusal("a message of 3145729 bytes for node 2; at most 3145728 are handed on");
}

TEST_F(CoordinatorTest, an_agent_whose_connection_breaks_is_a_lost_node_and_one_that_leaves_is_not) {
  expect_the_job_goes_on();  // it leaves at the end
  {
    Peer agent(coordinator_->address());
    ASSERT_TRUE(agent.attend(1));
    ASSERT_TRUE(agent.say(brain::NodeJoined{1}, 1, kTerm));
    agent.break_off();
  }
  const auto noticed = wait_for_journal("fault_detected");
  ASSERT_EQ(noticed.size(), 1u);
  EXPECT_EQ(noticed[0]["lost_node"], 1);
  EXPECT_EQ(noticed[0]["kind"], "node");
}

TEST_F(CoordinatorTest, a_stranger_who_speaks_garbage_on_the_port_is_hung_up_on_and_the_job_goes_on) {
  const std::string address = coordinator_->address();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Fd stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(stranger.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const std::string garbage = "GET /orders HTTP/1.0\r\n\r\n" + std::string(4096, '\xee');
  ASSERT_EQ(send(stranger.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), static_cast<ssize_t>(garbage.size()));
  char answer[512];
  while (recv(stranger.get(), answer, sizeof(answer), 0) > 0) {
  }
  expect_the_job_goes_on();
}

// Returns the request, `times` over.
Coordinator::Commands echo(size_t times = 1) {
  return [times](const std::string& request, const std::function<void(const std::string&)>& answer) {
    std::string text;
    for (size_t i = 0; i < times; ++i) {
      text += request;
    }
    answer(text);
  };
}

TEST_F(CoordinatorTest, a_command_that_proves_the_key_is_answered_once_and_the_brain_hears_nothing_of_it) {
  coordinator_->take_commands(echo());
  Peer command(coordinator_->address());
  ASSERT_TRUE(command.come_as_command());
  EXPECT_TRUE(coordinator_->attending().empty());
  ASSERT_TRUE(command.ask("how many?"));
  EXPECT_EQ(command.answer(), "how many?");
  EXPECT_TRUE(command.end().ok());
  const auto lines = journal_lines("asked");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["name"], "node-" + std::to_string(proto::kCommand));
  EXPECT_TRUE(journal_lines("node_connected").empty());
  EXPECT_EQ(coordinator_->refused(), 0u);
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, an_answer_larger_than_a_message_comes_whole) {
  coordinator_->take_commands(echo(400));
  Peer command(coordinator_->address());
  ASSERT_TRUE(command.come_as_command());
  const std::string request(proto::kMaxAskBytes, 'x');
  ASSERT_TRUE(command.ask(request));
  const auto answer = command.answer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(*answer, std::string(400 * proto::kMaxAskBytes, 'x'));
  EXPECT_TRUE(command.end().ok());
}

TEST_F(CoordinatorTest, a_command_that_talks_rubbish_is_refused) {
  coordinator_->take_commands([](const auto&, const auto&) {});
  Peer long_winded(coordinator_->address());
  ASSERT_TRUE(long_winded.come_as_command());
  long_winded.ask(std::string(proto::kMaxAskBytes + 1, 'x'));
  EXPECT_EQ(long_winded.end().code(), StatusCode::kInvalidArgument);
  expect_one_refusal("a question of 16385 bytes; 16384 are the most", "a command from ");
  Peer twice(coordinator_->address());
  ASSERT_TRUE(twice.come_as_command());
  twice.ask("one");
  twice.ask("two");
  EXPECT_EQ(twice.end().message(), "it asked twice");
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.come_as_command());
  agent.say(brain::StopRequested{1, "because I say so"}, proto::kCommand, kTerm);
  EXPECT_EQ(agent.end().message(), "it sent an event instead of its question");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_command_is_told_when_nobody_answers_when_too_many_wait_and_when_the_job_ends) {
  Peer early(coordinator_->address());
  ASSERT_TRUE(early.come_as_command());
  early.ask("too early");
  EXPECT_EQ(early.end().message(), "the job is starting or ending; try again");
  EXPECT_EQ(coordinator_->refused(), 0u);

  coordinator_->take_commands([](const auto&, const auto&) {});  // never answers
  std::vector<std::unique_ptr<Peer>> waiting;
  for (int i = 0; i < 16; ++i) {
    waiting.push_back(std::make_unique<Peer>(coordinator_->address()));
    ASSERT_TRUE(waiting.back()->come_as_command()) << i;
    ASSERT_TRUE(waiting.back()->ask("any news?"));
  }
  Peer late(coordinator_->address());
  EXPECT_FALSE(late.come_as_command());
  EXPECT_EQ(late.end().code(), StatusCode::kResourceExhausted);
  waiting.front()->break_off();  // makes room, once the coordinator has noticed
  bool let_in = false;
  for (int i = 0; i < 1000 && !let_in; ++i) {
    let_in = Peer(coordinator_->address()).come_as_command();
  }
  EXPECT_TRUE(let_in);
  expect_the_job_goes_on();
  coordinator_->stop();
  EXPECT_EQ(waiting.back()->end().message(), "the coordinator stops");
}

TEST_F(CoordinatorTest, a_command_that_asks_nothing_is_let_go) {
  CoordinatorConfig hasty = config();
  hasty.handshake_timeout = std::chrono::milliseconds(300);
  start(std::move(hasty));
  Peer command(coordinator_->address());
  ASSERT_TRUE(command.come_as_command());
  const Status status = command.end();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "it asked nothing in time");
}

TEST_F(CoordinatorTest, an_answer_that_comes_when_the_coordinator_is_gone_goes_nowhere) {
  std::function<void(const std::string&)> kept;
  std::mutex mutex;
  std::condition_variable asked;
  coordinator_->take_commands([&](const auto&, std::function<void(const std::string&)> answer) {
    const std::lock_guard lock(mutex);
    kept = std::move(answer);
    asked.notify_all();
  });
  Peer command(coordinator_->address());
  ASSERT_TRUE(command.come_as_command());
  ASSERT_TRUE(command.ask("are you there?"));
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(asked.wait_for(lock, std::chrono::seconds(20), [&] { return kept != nullptr; }));
  }
  coordinator_.reset();
  kept("no");
  EXPECT_EQ(command.answer(), std::nullopt);
}

TEST_F(CoordinatorTest, a_port_in_use_is_an_error_that_says_so) {
  CoordinatorConfig second = config();
  second.listen = coordinator_->address();
  const auto started = Coordinator::start(std::move(second), journal_.get());
  ASSERT_EQ(started.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(started.status().message());
  EXPECT_NE(message.find(coordinator_->address() + ": Address already in use"), std::string::npos) << message;
}

TEST_F(CoordinatorTest, a_unix_socket_in_a_private_folder_serves_as_well) {
  CoordinatorConfig local = config();
  std::filesystem::create_directory(directory_ + "/private");
  std::filesystem::permissions(directory_ + "/private", std::filesystem::perms::owner_all);
  local.listen = "unix:" + directory_ + "/private/coordinator";
  start(std::move(local));
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, agents_are_told_when_the_coordinator_stops) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  coordinator_->stop();
  const Status status = agent.end();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the coordinator stops");
}

}  // namespace
}  // namespace keepstep::coordinator
