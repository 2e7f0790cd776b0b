// A relay between two members may do anything with their bytes, but all it can achieve is to end the connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using absl::StatusCode;
using testing::ElementsAreArray;

constexpr size_t kHeaderBytes = 5;  // of a record: type, version, length (RFC 8446, 5.1)
constexpr int kMessages = 10;
constexpr size_t kTarget = 4;  // the record that is tampered with; each holds one message

using Records = std::vector<std::string>;

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) {
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

// Passes bytes between its clients and `port`. After hold(), it holds back what the connecting side sends until
// that side ends, then passes on what a function returns for those records.
class Relay {
 public:
  explicit Relay(uint16_t port) : listener_(listen_tcp({"127.0.0.1", 0}).value()) {
    thread_ = std::thread([this, port] { run(port); });
  }
  ~Relay() { thread_.join(); }

  SocketAddress address() const { return local_address(listener_.get()).value(); }
  // Call it before the affected records are sent.
  void hold(std::function<Records(Records)> spoil) {
    spoil_ = std::move(spoil);
    holding_.store(true, std::memory_order_release);
  }

 private:
  void run(uint16_t port) {
    wait_for(listener_.get(), POLLIN, soon());
    const Fd from(accept(listener_.get(), nullptr, nullptr));
    const Fd to = plain_socket(port);
    std::string held;
    char some[65536];
    while (true) {
      pollfd fds[] = {{from.get(), POLLIN, 0}, {to.get(), POLLIN, 0}};
      poll(fds, 2, -1);
      if (fds[0].revents != 0) {
        const ssize_t count = recv(from.get(), some, sizeof some, 0);
        if (count <= 0) {
          break;
        }
        const std::string_view bytes(some, static_cast<size_t>(count));
        if (holding_.load(std::memory_order_acquire)) {
          held += bytes;
        } else {
          write_all(to.get(), bytes);
        }
      }
      if (fds[1].revents != 0) {
        const ssize_t count = recv(to.get(), some, sizeof some, 0);
        if (count <= 0) {
          break;
        }
        write_all(from.get(), {some, static_cast<size_t>(count)});
      }
    }
    for (const std::string& record : spoil_ ? spoil_(cut(held)) : Records{}) {
      write_all(to.get(), record);
    }
  }

  static Records cut(std::string_view bytes) {
    Records records;
    while (bytes.size() >= kHeaderBytes) {
      const size_t size = kHeaderBytes + (static_cast<uint8_t>(bytes[3]) << 8 | static_cast<uint8_t>(bytes[4]));
      records.emplace_back(bytes.substr(0, size));
      bytes.remove_prefix(std::min(size, bytes.size()));
    }
    return records;
  }

  Fd listener_;
  std::function<Records(Records)> spoil_;
  std::atomic<bool> holding_ = false;
  std::thread thread_;
};

struct Outcome {
  std::vector<std::string> messages;
  Status end;
};

std::string text(size_t number) { return absl::StrFormat("message %d", number); }

// Sends messages, and the end of the connection, through a relay that applies `spoil` to their records.
Outcome send_through(std::function<Records(Records)> spoil) {
  Host host;
  std::unique_ptr<Connection> far;
  {
    Relay relay(host.port());
    const auto near = Connection::connect(relay.address(), context_of(), {}, soon());
    EXPECT_TRUE(near.ok()) << near.status();
    far = host.inbox.connection();  // so the handshake is over
    EXPECT_TRUE((*near)->send("before", soon()).ok());
    EXPECT_EQ(far->receive(soon()).value_or(""), "before");
    relay.hold(std::move(spoil));
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE((*near)->send(text(static_cast<size_t>(i)), soon()).ok());
    }
    EXPECT_TRUE((*near)->end_sends(soon()).ok());
  }
  Outcome outcome;
  while (true) {
    StatusOr<std::string> message = far->receive(soon());
    if (!message.ok()) {
      outcome.end = message.status();
      EXPECT_EQ(far->receive(soon()).status(), outcome.end);
      return outcome;
    }
    outcome.messages.push_back(*std::move(message));
  }
}

// The first `count` messages arrived as they were sent, once each, and nothing else.
void expect_prefix(const Outcome& outcome, size_t count, StatusCode end) {
  std::vector<std::string> expected;
  for (size_t i = 0; i < count; ++i) {
    expected.push_back(text(i));
  }
  EXPECT_THAT(outcome.messages, ElementsAreArray(expected));
  EXPECT_EQ(outcome.end.code(), end) << outcome.end;
}

TEST(RelayTest, what_is_left_alone_arrives) {
  const Outcome outcome = send_through([](Records records) {
    EXPECT_EQ(records.size(), size_t{kMessages + 1});
    return records;
  });
  expect_prefix(outcome, kMessages, StatusCode::kOutOfRange);
}

TEST(RelayTest, a_record_with_any_bit_changed_ends_the_connection) {
  for (const size_t at : {size_t{0}, size_t{1}, size_t{4}, kHeaderBytes, kHeaderBytes + 7, size_t{999}}) {
    const Outcome outcome = send_through([at](Records records) {
      std::string& record = records[kTarget];
      record[std::min(at, record.size() - 1)] ^= 1;
      return records;
    });
    expect_prefix(outcome, kTarget, StatusCode::kDataLoss);
  }
}

TEST(RelayTest, a_record_that_is_repeated_ends_the_connection) {
  expect_prefix(send_through([](Records records) {
                  records.insert(records.begin() + kTarget, records[kTarget]);
                  return records;
                }),
                kTarget + 1, StatusCode::kDataLoss);
}

TEST(RelayTest, a_record_that_is_left_out_ends_the_connection) {
  for (const size_t target : {kTarget, size_t{kMessages - 1}}) {
    expect_prefix(send_through([target](Records records) {
                    records.erase(records.begin() + static_cast<ptrdiff_t>(target));
                    return records;
                  }),
                  target, StatusCode::kDataLoss);
  }
}

TEST(RelayTest, records_in_another_order_end_the_connection) {
  expect_prefix(send_through([](Records records) {
                  std::swap(records[kTarget], records[kTarget + 1]);
                  return records;
                }),
                kTarget, StatusCode::kDataLoss);
}

TEST(RelayTest, a_record_that_the_relay_made_ends_the_connection) {
  for (const std::string& forged : {std::string("\x17\x03\x03\x00\x05hello", 10),
                                    std::string("\x15\x03\x03\x00\x02\x01\x00", 7)}) {  // data; an end
    const Outcome outcome = send_through([&](Records records) {
      records.insert(records.begin() + kTarget, forged);
      return records;
    });
    expect_prefix(outcome, kTarget, StatusCode::kDataLoss);
  }
}

TEST(RelayTest, a_connection_that_is_cut_between_two_messages_did_not_end_in_order) {
  expect_prefix(send_through([](Records records) {
                  records.resize(kTarget);
                  return records;
                }),
                kTarget, StatusCode::kUnavailable);
}

}  // namespace
}  // namespace keepstep::net
