// The coordinator over real gRPC on the loopback, met by agents, strangers and liars that speak the raw protocol.
#include "coordinator/coordinator.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "proto/control.grpc.pb.h"
#include "proto/convert.h"
#include "proto/grpc_setup.h"
#include "proto/handshake.h"
#include "proto/rank_table_wire.h"

namespace keepstep::coordinator {
namespace {

using grpc::StatusCode;

const JobToken kToken = *JobToken::parse("the token of this job, in a test");
const JobToken kOtherToken = *JobToken::parse("the token of another job altogether");

// A peer without manners: says exactly what a test tells it to.
class Peer {
 public:
  explicit Peer(const std::string& address)
      : channel_(grpc::CreateCustomChannel(proto::target(address), grpc::InsecureChannelCredentials(),
                                           proto::channel_arguments(address))),
        stub_(control::Control::NewStub(channel_)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    stream_ = stub_->Attend(&context_);
  }

  bool say(const control::FromAgent& message) { return stream_->Write(message); }
  bool hear(control::FromCoordinator* message) { return stream_->Read(message); }

  bool say(const brain::Event& event, brain::NodeId node, uint32_t term) {
    return say(proto::to_wire(event, node, {term, 0}));
  }

  bool hello(brain::NodeId node) {
    handshake_.node = node;
    handshake_.node_name = "node-" + std::to_string(node);
    handshake_.agent_nonce = random_nonce();
    control::FromAgent message;
    message.set_node(node);
    message.mutable_hello()->set_node_name(handshake_.node_name);
    message.mutable_hello()->set_agent_nonce(handshake_.agent_nonce);
    return say(message);
  }

  // Hears the challenge; true if it proves `token`.
  bool challenge(const JobToken& token) {
    control::FromCoordinator message;
    if (!hear(&message) || !message.has_challenge()) {
      return false;
    }
    handshake_.term = message.term();
    handshake_.coordinator_nonce = message.challenge().coordinator_nonce();
    return handshake_.is_coordinator(token, message.challenge().proof());
  }

  bool prove(const JobToken& token) { return prove(token, handshake_.node); }
  bool prove(const JobToken& token, brain::NodeId as_node) {
    control::FromAgent message;
    message.set_node(as_node);
    message.set_term(handshake_.term);
    message.mutable_proof()->set_proof(handshake_.agent_proof(token));
    return say(message);
  }

  bool attend(brain::NodeId node) {
    control::FromCoordinator welcome;
    return hello(node) && challenge(kToken) && prove(kToken) && hear(&welcome) && welcome.has_welcome();
  }

  // What the coordinator says until it ends the stream, and how it ends it.
  grpc::Status end() {
    control::FromCoordinator rest;
    while (hear(&rest)) {
    }
    return stream_->Finish();
  }

  void break_off() {
    context_.TryCancel();
    end();
  }

  // As a user's command: lets itself be let in.
  bool come_as_command() { return attend(proto::kCommand); }

  bool ask(const std::string& request) {
    control::FromAgent question;
    question.set_node(proto::kCommand);
    question.set_term(handshake_.term);
    question.mutable_ask()->set_request(request);
    return say(question);
  }

  // The whole answer; nothing: the stream ended before.
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

  grpc::Status leave() {
    control::FromAgent goodbye;
    goodbye.set_node(handshake_.node);
    goodbye.set_term(handshake_.term);
    goodbye.mutable_leave();
    stream_->WriteLast(goodbye, grpc::WriteOptions());
    return end();
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<control::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<control::FromAgent, control::FromCoordinator>> stream_;
  proto::Handshake handshake_;
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
    CoordinatorConfig config{.token = kToken};
    config.membership.term = kTerm;
    return config;
  }

  std::vector<nlohmann::json> journal_lines(const std::string& event) const {
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
    EXPECT_TRUE(agent.leave().ok());
  }

  // Exactly one refusal, counted, with a journal line that contains `why` and the peer's address.
  void expect_one_refusal(const std::string& why, const std::string& of = "an agent") {
    EXPECT_EQ(coordinator_->refused(), 1u);
    const auto lines = journal_lines("refused");
    ASSERT_EQ(lines.size(), 1u);
    const std::string because = lines[0]["because"];
    EXPECT_NE(because.find(why), std::string::npos) << because;
    EXPECT_NE(because.find(of + " from ipv4:127.0.0.1:"), std::string::npos) << because;
    EXPECT_EQ(lines[0]["count"], 1);
    EXPECT_EQ(lines[0]["term"], kTerm);
  }

  static constexpr uint32_t kTerm = 5;
  std::string directory_;
  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, an_agent_that_proves_the_token_is_welcomed_and_gets_orders) { expect_the_job_goes_on(); }

TEST_F(CoordinatorTest, a_wrong_token_is_refused_and_the_job_goes_on) {
  Peer liar(coordinator_->address());
  ASSERT_TRUE(liar.hello(1));
  EXPECT_FALSE(liar.challenge(kOtherToken)) << "the coordinator proved a token that it does not have";
  liar.prove(kOtherToken);
  const grpc::Status status = liar.end();
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status.error_message(), "wrong token");
  expect_one_refusal("wrong token");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_proof_for_another_node_is_worth_nothing) {
  Peer liar(coordinator_->address());
  ASSERT_TRUE(liar.hello(1));
  ASSERT_TRUE(liar.challenge(kToken));
  liar.prove(kToken, 2);
  EXPECT_EQ(liar.end().error_code(), StatusCode::UNAUTHENTICATED);
  expect_one_refusal("wrong token");
}

TEST_F(CoordinatorTest, the_coordinators_own_proof_sent_back_is_refused) {
  Peer mirror(coordinator_->address());
  ASSERT_TRUE(mirror.hello(1));
  control::FromCoordinator challenge;
  ASSERT_TRUE(mirror.hear(&challenge));
  control::FromAgent reflected;
  reflected.set_node(1);
  reflected.mutable_proof()->set_proof(challenge.challenge().proof());
  mirror.say(reflected);
  EXPECT_EQ(mirror.end().error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(CoordinatorTest, an_event_before_the_hello_is_refused) {
  Peer stranger(coordinator_->address());
  stranger.say(brain::StopRequested{1, "because I say so"}, 1, kTerm);
  EXPECT_EQ(stranger.end().error_code(), StatusCode::UNAUTHENTICATED);
  expect_one_refusal("it began with an event instead of a hello");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, an_event_before_the_proof_is_refused) {
  Peer stranger(coordinator_->address());
  ASSERT_TRUE(stranger.hello(1));
  ASSERT_TRUE(stranger.challenge(kToken));
  stranger.say(brain::StopRequested{1, "because I say so"}, 1, kTerm);
  EXPECT_EQ(stranger.end().error_code(), StatusCode::UNAUTHENTICATED);
  expect_one_refusal("it sent an event before it proved the job token");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_hello_with_a_short_nonce_is_refused) {
  Peer stranger(coordinator_->address());
  control::FromAgent hello;
  hello.mutable_hello()->set_agent_nonce("short");
  stranger.say(hello);
  EXPECT_EQ(stranger.end().error_code(), StatusCode::INVALID_ARGUMENT);
  expect_one_refusal("a nonce of 5 bytes");
}

TEST_F(CoordinatorTest, a_malformed_message_is_refused) {
  const auto channel =
      grpc::CreateCustomChannel(proto::target(coordinator_->address()), grpc::InsecureChannelCredentials(),
                                proto::channel_arguments(coordinator_->address()));
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  auto stream = stub.PrepareCall(&context, "/keepstep.control.Control/Attend", &queue);
  stream->StartCall(nullptr);
  next();
  const grpc::Slice garbage("\xff\xff\xff no protobuf at all");
  stream->Write(grpc::ByteBuffer(&garbage, 1), nullptr);
  next();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "a malformed message of 22 bytes");
  expect_one_refusal("a malformed message of 22 bytes");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, an_oversized_hello_is_refused) {
  Peer stranger(coordinator_->address());
  control::FromAgent hello;
  hello.mutable_hello()->set_agent_nonce(std::string(5 << 20, 'x'));
  stranger.say(hello);
  EXPECT_FALSE(stranger.end().ok());
  coordinator_->stop();  // returns when gRPC is through with the stream
  expect_one_refusal("more than 4 MiB");
}

TEST_F(CoordinatorTest, an_oversized_event_ends_its_stream_and_the_job_goes_on) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  control::FromAgent event;
  event.set_node(1);
  event.set_term(kTerm);
  event.mutable_events()->add_event()->mutable_stop_requested()->set_because(std::string(5 << 20, 'x'));
  agent.say(event);
  EXPECT_FALSE(agent.end().ok());
  expect_the_job_goes_on(2);
  coordinator_->stop();
  std::map<int, std::string> why_by_node;
  for (const nlohmann::json& line : journal_lines("node_lost")) {
    why_by_node[line["lost_node"]] = line["because"];
  }
  EXPECT_NE(why_by_node[1].find("more than 4 MiB"), std::string::npos) << why_by_node[1];
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
  EXPECT_EQ(agent.end().error_code(), StatusCode::INVALID_ARGUMENT);
  expect_one_refusal("node 1 speaks for node 2");
  expect_the_job_goes_on(1);
}

TEST_F(CoordinatorTest, a_second_agent_of_a_node_is_refused_until_the_first_has_left) {
  Peer first(coordinator_->address());
  ASSERT_TRUE(first.attend(1));
  Peer second(coordinator_->address());
  EXPECT_FALSE(second.attend(1));
  EXPECT_EQ(second.end().error_code(), StatusCode::ALREADY_EXISTS);
  expect_one_refusal("node 1 is connected already");
  EXPECT_TRUE(first.leave().ok());
  expect_the_job_goes_on(1);
}

TEST_F(CoordinatorTest, a_handshake_that_stalls_is_cancelled) {
  CoordinatorConfig hasty = config();
  hasty.handshake_timeout = std::chrono::milliseconds(50);
  start(std::move(hasty));
  Peer silent(coordinator_->address());
  EXPECT_EQ(silent.end().error_code(), StatusCode::DEADLINE_EXCEEDED);
  expect_one_refusal("it did not say hello in time");
  Peer slow(coordinator_->address());
  ASSERT_TRUE(slow.hello(1));
  EXPECT_EQ(slow.end().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(coordinator_->refused(), 2u);
}

// One agent with one rank, by the raw protocol: what it says of the table it holds decides what it is sent.
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
  // The next order of that kind; others are repetitions, or of no interest here.
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
  // The worker dies and another takes its place; the Prepare that follows.
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
  EXPECT_EQ(whole->table.place(0), (brain::RankTable::Place{1, 0, brain::ipv4(10, 0, 0, 1), 20000}));
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
  EXPECT_TRUE(agent_->leave().ok());
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
  message.mutable_routed()->set_peer(7);  // nobody: dropped without harm
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
  EXPECT_EQ(one.end().error_code(), StatusCode::INVALID_ARGUMENT);
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
  const auto noticed = wait_for_journal("fault_noticed");
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

// Says what it was asked, `times` over.
Coordinator::Commands echo(size_t times = 1) {
  return [times](const std::string& request, const std::function<void(const std::string&)>& answer) {
    std::string text;
    for (size_t i = 0; i < times; ++i) {
      text += request;
    }
    answer(text);
  };
}

TEST_F(CoordinatorTest, a_command_that_proves_the_token_is_answered_once_and_the_brain_hears_nothing_of_it) {
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

TEST_F(CoordinatorTest, a_command_without_the_token_is_never_asked_what_it_wants) {
  bool asked = false;
  coordinator_->take_commands([&](const auto&, const auto&) { asked = true; });
  {
    Peer liar(coordinator_->address());
    ASSERT_TRUE(liar.hello(proto::kCommand));
    EXPECT_FALSE(liar.challenge(kOtherToken));
    liar.prove(kOtherToken);
    EXPECT_EQ(liar.end().error_code(), StatusCode::UNAUTHENTICATED);
  }
  expect_one_refusal("wrong token", "a command");
  Peer hasty(coordinator_->address());
  ASSERT_TRUE(hasty.hello(proto::kCommand));
  ASSERT_TRUE(hasty.challenge(kToken));
  hasty.ask("before it proved anything");
  EXPECT_EQ(hasty.end().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(asked);
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_command_that_talks_rubbish_is_refused) {
  coordinator_->take_commands([](const auto&, const auto&) {});
  Peer long_winded(coordinator_->address());
  ASSERT_TRUE(long_winded.come_as_command());
  long_winded.ask(std::string(proto::kMaxAskBytes + 1, 'x'));
  EXPECT_EQ(long_winded.end().error_code(), StatusCode::INVALID_ARGUMENT);
  expect_one_refusal("a question of 16385 bytes; 16384 are the most", "a command");
  Peer twice(coordinator_->address());
  ASSERT_TRUE(twice.come_as_command());
  twice.ask("one");
  twice.ask("two");
  EXPECT_EQ(twice.end().error_message(), "it asked twice");
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.come_as_command());
  agent.say(brain::StopRequested{1, "because I say so"}, proto::kCommand, kTerm);
  EXPECT_EQ(agent.end().error_message(), "it sent an event instead of its question");
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, a_command_is_told_when_nobody_answers_when_too_many_wait_and_when_the_job_ends) {
  Peer early(coordinator_->address());
  ASSERT_TRUE(early.come_as_command());
  early.ask("too early");
  EXPECT_EQ(early.end().error_message(), "the job starts or ends just now; try again");
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
  EXPECT_EQ(late.end().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  waiting.front()->break_off();  // makes room, once the coordinator has seen it
  bool let_in = false;
  for (int i = 0; i < 1000 && !let_in; ++i) {
    let_in = Peer(coordinator_->address()).come_as_command();
  }
  EXPECT_TRUE(let_in);
  expect_the_job_goes_on();
  coordinator_->stop();
  EXPECT_EQ(waiting.back()->end().error_message(), "the coordinator stops");
}

TEST_F(CoordinatorTest, a_command_that_asks_nothing_is_let_go) {
  CoordinatorConfig hasty = config();
  hasty.handshake_timeout = std::chrono::milliseconds(300);
  start(std::move(hasty));
  Peer command(coordinator_->address());
  ASSERT_TRUE(command.come_as_command());
  const grpc::Status status = command.end();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "it asked nothing in time");
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

TEST_F(CoordinatorTest, a_unix_socket_without_a_name_in_the_file_system_serves_as_well) {
  CoordinatorConfig local = config();
  local.listen = "unix-abstract:keepstep-test-" + to_hex(random_nonce());
  start(std::move(local));
  expect_the_job_goes_on();
}

TEST_F(CoordinatorTest, agents_are_told_when_the_coordinator_stops) {
  Peer agent(coordinator_->address());
  ASSERT_TRUE(agent.attend(1));
  coordinator_->stop();
  const grpc::Status status = agent.end();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the coordinator stops");
}

}  // namespace
}  // namespace keepstep::coordinator
