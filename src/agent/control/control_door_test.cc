#include "agent/control/control_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/runtime_folder_testing.h"
#include "base/shared_memory.h"
#include "base/socket/local_socket.h"

namespace keepstep::agent {
namespace {

using testing::HasSubstr;

// Those of this test: a job of this user may be running.
std::vector<DoorName> doors_in(const OwnRuntimeFolder& folder) {
  std::vector<DoorName> doors = find_doors();
  std::erase_if(doors, [&](const DoorName& door) { return !door.path.starts_with(folder.path()); });
  return doors;
}

// A door whose handler echoes "say", gives "large" a large answer, throws on "throw", and keeps "later" for the test.
class ControlDoorTest : public testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create();
    auto door = ControlDoor::open(
        *loop_, job_in_names("job of a test"),
        [this](const nlohmann::json& request, const ControlDoor::Answer& answer) { on(request, answer); },
        [this](const std::string& because, uint64_t count) {
          std::lock_guard lock(mutex_);
          refusals_.push_back(absl::StrFormat("%d: %s", count, because));
        });
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    thread_ = std::thread([this] { loop_->run(); });
  }
  void TearDown() override {
    loop_->post([this] { loop_->stop(); });
    thread_.join();
    door_.reset();
    EXPECT_TRUE(own_.empty());
  }
  void on(const nlohmann::json& request, const ControlDoor::Answer& answer) {
    const std::string op = request.at("op");
    if (op == "say") {
      answer({{"ok", true}, {"said", request.at("what")}});
    } else if (op == "large") {
      answer({{"ok", true}, {"much", std::string(request.at("bytes").get<size_t>(), 'x')}});
    } else if (op == "later") {
      later_.push_back(answer);
      if (later_.size() == request.value("of", size_t{1})) {
        for (auto it = later_.rbegin(); it != later_.rend(); ++it) {
          (*it)({{"ok", true}});
          (*it)({{"ok", false}});  // a second answer is ignored
        }
      }
    }
  }
  PacketSocket connect() const { return *connect_local(door_->path()); }
  static nlohmann::json receive(const PacketSocket& socket) { return nlohmann::json::parse(socket.receive()->bytes); }
  static bool let_go(const PacketSocket& socket) { return absl::IsUnavailable(socket.receive().status()); }
  // It still serves everybody else.
  void expect_served() {
    const PacketSocket other = connect();
    ASSERT_TRUE(other.send(R"({"op": "say", "what": "hello"})").ok());
    EXPECT_EQ(receive(other).at("said"), "hello");
  }
  std::string refusals() {
    std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& each : refusals_) {
      all += each + "\n";
    }
    return all;
  }

  OwnRuntimeFolder own_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<ControlDoor> door_;
  std::vector<ControlDoor::Answer> later_;
  std::mutex mutex_;
  std::vector<std::string> refusals_;
  std::thread thread_;
};

TEST_F(ControlDoorTest, several_requests_at_once_are_told_apart_by_their_id) {
  const PacketSocket socket = connect();
  for (int id = 1; id <= 3; ++id) {
    ASSERT_TRUE(socket.send(nlohmann::json{{"op", "later"}, {"of", 3}, {"id", id}}.dump()).ok());
  }
  for (int id = 3; id >= 1; --id) {
    const nlohmann::json answer = receive(socket);
    EXPECT_EQ(answer.at("id"), id);
    EXPECT_EQ(answer.at("ok"), true);
  }
}

TEST_F(ControlDoorTest, an_answer_larger_than_a_packet_comes_whole) {
  const PacketSocket socket = connect();
  ASSERT_TRUE(socket.send(R"({"op": "large", "bytes": 5000000})").ok());
  StatusOr<Packet> packet = socket.receive();
  ASSERT_TRUE(packet.ok());
  const size_t bytes = nlohmann::json::parse(packet->bytes).at("bytes");
  ASSERT_EQ(packet->fds.size(), 1u);
  const auto memory = SharedMemory::attach(std::move(packet->fds[0]), bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto answer = nlohmann::json::parse(std::string_view(reinterpret_cast<const char*>(memory->data()), bytes));
  EXPECT_EQ(answer.at("much").get<std::string>().size(), 5000000u);
}

TEST_F(ControlDoorTest, rubbish_ends_its_own_connection_only) {
  for (const std::string& rubbish :
       {std::string("GET / HTTP/1.0"), std::string("[1, 2]"), std::string("\x00\xff\xfe", 3), std::string("{"),
        "\"" + std::string(kMaxRequestBytes, 'x') + "\""}) {
    const PacketSocket socket = connect();
    ASSERT_TRUE(socket.send(rubbish).ok());
    EXPECT_TRUE(let_go(socket)) << rubbish.substr(0, 20);
  }
  EXPECT_THAT(refusals(), HasSubstr(absl::StrFormat("1: process %d sent a request that is no JSON object", getpid())));
  EXPECT_THAT(refusals(), testing::Not(HasSubstr("3: ")));  // reported less and less often
  expect_served();
}

TEST_F(ControlDoorTest, a_request_without_what_it_needs_is_an_error_and_no_reason_to_hang_up) {
  const PacketSocket socket = connect();
  ASSERT_TRUE(socket.send("{}").ok());
  EXPECT_THAT(receive(socket).at("error").get<std::string>(), HasSubstr("'op' not found"));
  ASSERT_TRUE(socket.send(R"({"op": "say"})").ok());
  EXPECT_EQ(receive(socket).at("ok"), false);
}

TEST_F(ControlDoorTest, clients_that_say_nothing_make_room_for_those_that_do) {
  std::vector<PacketSocket> silent;
  for (size_t i = 0; i < kMaxClients + 3; ++i) {
    silent.push_back(connect());
  }
  expect_served();
  EXPECT_TRUE(let_go(silent.front()));
  EXPECT_THAT(refusals(), HasSubstr("16 connections at once are the most"));
}

TEST_F(ControlDoorTest, who_asks_more_than_it_hears_out_is_let_go) {
  const PacketSocket greedy = connect();
  for (size_t i = 0; i <= kMaxRequestsPerClient; ++i) {
    (void)greedy.send(R"({"op": "later", "of": 100})");
  }
  EXPECT_TRUE(let_go(greedy));
  const PacketSocket deaf = connect();  // it reads no answers, and its socket can hold only a few
  while (deaf.send(R"({"op": "large", "bytes": 50000})").ok()) {
  }
  expect_served();
  EXPECT_THAT(refusals(), HasSubstr("more than 8 requests at once"));
}

TEST_F(ControlDoorTest, it_is_found_by_its_jobs_name_also_after_somebody_removed_its_file) {
  const PacketSocket before = connect();
  for (int i = 0; i < 2; ++i) {
    const std::vector<DoorName> doors = doors_in(own_);
    ASSERT_EQ(doors.size(), 1u);
    EXPECT_EQ(doors[0].job, "job-of-a-test");
    EXPECT_EQ(doors[0].path, door_->path());
    expect_served();
    std::promise<Status> kept;
    std::filesystem::remove_all(own_.names());
    EXPECT_TRUE(doors_in(own_).empty());
    loop_->post([&] { kept.set_value(door_->keep_open()); });
    EXPECT_TRUE(kept.get_future().get().ok());
  }
  ASSERT_TRUE(before.send(R"({"op": "say", "what": "still here"})").ok());
  EXPECT_EQ(receive(before).at("said"), "still here");
}

TEST_F(ControlDoorTest, another_user_is_not_let_in) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user";
  }
  const pid_t child = fork();
  if (child == 0) {
    const bool stranger = setuid(65534) == 0;
    const auto refused = connect_local(door_->path());
    _exit(stranger && !refused.ok() && find_doors().empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(refusals(), "") << "nothing came as far as the launcher";
  expect_served();
}

TEST(DoorName, what_is_not_fit_for_a_file_becomes_a_dash_and_the_rest_is_cut) {
  EXPECT_THAT(job_in_names("my run/№1"), testing::MatchesRegex("my-run-+1"));
  EXPECT_EQ(job_in_names("../+lock"), "..--lock");
  EXPECT_EQ(job_in_names(std::string(500, 'x')).size(), 48u);
}

TEST(DoorName, jobs_whose_names_begin_alike_are_told_apart) {
  const OwnRuntimeFolder own;
  const auto loop = *EventLoop::create();
  std::vector<std::unique_ptr<ControlDoor>> doors;
  for (const char* job : {"a", "a-1", "a-1"}) {
    doors.push_back(*ControlDoor::open(*loop, job, nullptr, nullptr));
  }
  std::vector<std::string> found;
  for (const DoorName& door : doors_in(own)) {
    found.push_back(door.job);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre("a", "a-1", "a-1"));
}

}  // namespace
}  // namespace keepstep::agent
