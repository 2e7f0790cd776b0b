// A user's command over the network: to a real coordinator on the loopback, and to servers that are not one.
#include "agent/control/job_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/socket/tcp_socket.h"
#include "base/token.h"
#include "coordinator/coordinator.h"
#include "net/connection.h"
#include "observe/journal.h"
#include "proto/convert.h"

namespace keepstep::agent {
namespace {

using namespace std::chrono_literals;
using coordinator::Coordinator;
using coordinator::CoordinatorConfig;
using ::testing::AllOf;
using ::testing::HasSubstr;

net::SharedKey key_of(const char* token) { return net::SharedKey::control(*JobToken::parse(token), "run 7"); }
const net::SharedKey kKey = key_of("the token of this job, in a test");
const net::SharedKey kOtherKey = key_of("the token of another job altogether");

class JobEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    journal_ = *observe::Journal::open("", 0);
    StatusOr<std::unique_ptr<Coordinator>> started = Coordinator::start(CoordinatorConfig{.key = kKey}, journal_.get());
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
  }

  JobEndpoint here() const {
    const std::string address = coordinator_->address();
    return {"127.0.0.1", static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))};
  }
  std::string error(const Status& status, absl::StatusCode code) const {
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }

  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(JobEndpointTest, what_is_asked_comes_to_the_job_and_its_answer_back_whole) {
  coordinator_->take_commands([](const std::string& request, const std::function<void(const std::string&)>& answer) {
    answer(request + std::string(3 * proto::kMaxAnswerPartBytes, '.'));
  });
  const StatusOr<std::string> answer = ask_endpoint(here(), kKey, "how many?", 20s);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, "how many?" + std::string(3 * proto::kMaxAnswerPartBytes, '.'));
}

TEST_F(JobEndpointTest, the_job_of_another_token_is_told_nothing) {
  bool asked = false;
  coordinator_->take_commands([&](const auto&, const auto&) { asked = true; });
  EXPECT_THAT(error(ask_endpoint(here(), kOtherKey, "how many?", 20s).status(), absl::StatusCode::kUnauthenticated),
              AllOf(HasSubstr("127.0.0.1:"), HasSubstr("does not know the job token"), HasSubstr("--token-file"),
                    HasSubstr("--rdzv-id")));
  EXPECT_FALSE(asked);
}

TEST_F(JobEndpointTest, a_job_that_starts_and_one_that_does_not_answer_say_so) {
  EXPECT_THAT(error(ask_endpoint(here(), kKey, "{}", 20s).status(), absl::StatusCode::kUnavailable),
              HasSubstr("the job is starting or ending; try again"));
  coordinator_->take_commands([](const auto&, const auto&) {});
  EXPECT_THAT(error(ask_endpoint(here(), kKey, "{}", 500ms).status(), absl::StatusCode::kDeadlineExceeded),
              AllOf(HasSubstr("within 0.5 s"), HasSubstr("is the launcher of node 0 stopped?")));
}

TEST_F(JobEndpointTest, an_answer_that_takes_longer_than_signs_of_life_comes_all_the_same) {
  std::thread answering;
  coordinator_->take_commands([&](const std::string&, const std::function<void(const std::string&)>& answer) {
    answering = std::thread([answer] {
      std::this_thread::sleep_for(4s);
      answer("at last");
    });
  });
  const StatusOr<std::string> answer = ask_endpoint(here(), kKey, "{}", 20s);
  EXPECT_EQ(answer.value_or(std::string(answer.status().message())), "at last");
  answering.join();
}

TEST_F(JobEndpointTest, a_job_that_ends_meanwhile_says_so) {
  std::promise<void> asked;
  coordinator_->take_commands([&](const auto&, const auto&) { asked.set_value(); });
  std::thread launcher([&] {
    asked.get_future().wait();
    coordinator_->stop();
  });
  EXPECT_THAT(error(ask_endpoint(here(), kKey, "{}", 20s).status(), absl::StatusCode::kUnavailable),
              HasSubstr("the coordinator stops"));
  launcher.join();
}

TEST_F(JobEndpointTest, where_nobody_listens_all_addresses_are_named_with_what_they_said) {
  const JobEndpoint gone = here();
  coordinator_.reset();
  EXPECT_THAT(error(ask_endpoint(gone, kKey, "{}", 20s).status(), absl::StatusCode::kUnavailable),
              AllOf(HasSubstr("nobody accepts connections at " + gone.text()), HasSubstr("Connection refused"),
                    HasSubstr("--rdzv-endpoint")));
  EXPECT_THAT(
      error(ask_endpoint({"no-such-host.invalid", 29400}, kKey, "{}", 20s).status(), absl::StatusCode::kNotFound),
      HasSubstr("'no-such-host.invalid' cannot be resolved"));
}

// Answers all input with `words` (if empty, not at all), and reads on.
class Stranger {
 public:
  explicit Stranger(std::string words) : words_(std::move(words)) {
    listener_ = *listen_tcp({"127.0.0.1", 0});
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  JobEndpoint endpoint() const { return {"127.0.0.1", local_address(listener_.get())->port}; }

 private:
  void serve(const std::stop_token& stop) {
    std::vector<Fd> clients;
    while (!stop.stop_requested()) {
      pollfd readable{.fd = listener_.get(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 20) == 1) {
        if (StatusOr<Fd> client = accept_tcp(listener_.get()); client.ok() && client->valid()) {
          if (!words_.empty() && write(client->get(), words_.data(), words_.size()) < 0) {
            continue;  // it only checked whether somebody accepts
          }
          clients.push_back(*std::move(client));
        }
      }
    }
  }
  const std::string words_;
  Fd listener_;
  std::jthread thread_;
};

TEST_F(JobEndpointTest, a_port_that_is_no_jobs_says_so) {
  const Stranger ssh("SSH-2.0-OpenSSH_9.2p1\r\n");
  EXPECT_THAT(error(ask_endpoint(ssh.endpoint(), kKey, "{}", 20s).status(), absl::StatusCode::kUnavailable),
              AllOf(HasSubstr(ssh.endpoint().text()), HasSubstr("does not answer as a keepstep job does")));
}

// As a job does to make room among strangers: it ends the first connections before they prove the key.
TEST_F(JobEndpointTest, a_command_that_is_taken_for_a_stranger_tries_again) {
  coordinator_->take_commands(
      [](const std::string&, const std::function<void(const std::string&)>& answer) { answer("here"); });
  const Fd relay = *listen_tcp({"127.0.0.1", 0});
  std::jthread drops_two([&] {
    std::vector<Fd> held;
    for (int connection = 0; connection < 3; ++connection) {
      pollfd readable{.fd = relay.get(), .events = POLLIN, .revents = 0};
      poll(&readable, 1, -1);
      Fd near = *accept_tcp(relay.get());
      if (connection < 2) {
        continue;  // closed
      }
      const Fd far = *net::connect_to(SocketAddress{here().host, here().port}, net::Deadline::after(20s));
      std::string some(1 << 16, '\0');
      pollfd ends[2] = {{near.get(), POLLIN, 0}, {far.get(), POLLIN, 0}};
      for (bool open = true; open;) {
        poll(ends, 2, -1);
        for (int end = 0; end < 2; ++end) {
          const ssize_t count = ends[end].revents == 0 ? -1 : read(ends[end].fd, some.data(), some.size());
          open =
              open && count != 0 && (count < 0 || write(ends[1 - end].fd, some.data(), static_cast<size_t>(count)) > 0);
        }
      }
    }
  });
  const JobEndpoint through{"127.0.0.1", local_address(relay.get())->port};
  EXPECT_EQ(ask_endpoint(through, kKey, "{}", 20s).value(), "here");
}

TEST_F(JobEndpointTest, a_port_that_says_nothing_is_given_up) {
  const Stranger silent("");
  EXPECT_THAT(error(ask_endpoint(silent.endpoint(), kKey, "{}", 1500ms).status(), absl::StatusCode::kDeadlineExceeded),
              AllOf(HasSubstr(silent.endpoint().text()), HasSubstr("does not answer as a keepstep job does")));
}

TEST(JobEndpoint, an_ipv6_address_is_written_in_brackets) {
  EXPECT_EQ((JobEndpoint{"fd00::7", 29400}.text()), "[fd00::7]:29400");
  EXPECT_EQ((JobEndpoint{"node-a", 29400}.text()), "node-a:29400");
}

}  // namespace
}  // namespace keepstep::agent
