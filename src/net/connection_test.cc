#include "net/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <random>
#include <thread>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;

std::string random_text(size_t bytes, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  std::ranges::generate(text, [&] { return static_cast<char>(random() >> 56); });
  return text;
}

TEST(ConnectionTest, messages_of_every_size_around_a_record_arrive_whole_and_in_order) {
  Ends ends;
  constexpr size_t kRecord = TlsStream::kRecordBytes;
  const size_t sizes[] = {0,           1,           kRecord - 5,     kRecord - 4,     kRecord - 3, kRecord,
                          kRecord + 1, 4 * kRecord, 5 * kRecord - 4, 5 * kRecord - 3, 4u << 20,    0};
  std::thread sender([&] {
    for (const size_t size : sizes) {
      EXPECT_TRUE(ends.near->send(random_text(size, static_cast<uint32_t>(size)), soon()).ok());
    }
  });
  for (const size_t size : sizes) {
    const StatusOr<std::string> message = ends.far->receive(soon());
    EXPECT_TRUE(message.ok()) << message.status();
    EXPECT_TRUE(message.value_or("") == random_text(size, static_cast<uint32_t>(size))) << size;
  }
  sender.join();
}

// Keys change all the time, on both sides at once.
TEST(ConnectionTest, both_sides_send_64_mib_at_once_and_every_bit_arrives) {
  constexpr size_t kBytes = 64 << 20;
  Ends ends({.max_message_bytes = kBytes, .records_per_key = 64});
  const std::string there = random_text(kBytes, 1);
  const std::string back = random_text(kBytes, 2);
  const auto send = [](Connection& connection, const std::string& bytes) {
    for (const std::string_view part :
         {std::string_view(bytes).substr(0, 1000), std::string_view(bytes).substr(1000)}) {
      EXPECT_TRUE(connection.send(part, soon()).ok());
    }
  };
  const auto receive = [](Connection& connection) {
    std::string all = connection.receive(soon()).value_or("");
    return all + connection.receive(soon()).value_or("");
  };
  std::string got_there;
  std::string got_back;
  std::thread threads[] = {std::thread([&] { send(*ends.near, there); }), std::thread([&] { send(*ends.far, back); }),
                           std::thread([&] { got_there = receive(*ends.far); }),
                           std::thread([&] { got_back = receive(*ends.near); })};
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(got_there == there);
  EXPECT_TRUE(got_back == back);
  EXPECT_GE(ends.near->key_changes(), kBytes / TlsStream::kRecordBytes / 64 - 1);
  EXPECT_GE(ends.far->key_changes(), kBytes / TlsStream::kRecordBytes / 64 - 1);
}

TEST(ConnectionTest, a_message_over_the_limit_is_not_sent_and_the_next_one_is) {
  Ends ends({.max_message_bytes = 1000});
  EXPECT_EQ(ends.near->send(std::string(1001, 'x'), soon()).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(ends.near->send(std::string(1000, 'y'), soon()).ok());
  EXPECT_EQ(ends.far->receive(soon()).value(), std::string(1000, 'y'));
}

// A peer that uses plain OpenSSL, with our key.
struct PlainMember {
  explicit PlainMember(Host& host) : fd(plain_socket(host.port())) {
    ssl = host.context->start(Role::kConnects, &complaint).value();
    SSL_set_fd(ssl.get(), fd.get());
    EXPECT_EQ(SSL_connect(ssl.get()), 1);
    far = host.inbox.connection();
  }
  TlsContext::Complaint complaint;
  Fd fd;
  SslPointer ssl;
  std::unique_ptr<Connection> far;
};

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(ConnectionTest, a_length_over_the_limit_ends_the_connection_before_memory_is_taken) {
  constexpr size_t kLimit = 4 << 20;
  Host host;
  for (const uint32_t size : {uint32_t{kLimit + 1}, UINT32_MAX}) {
    PlainMember member(host);
    const int64_t before = peak_memory_bytes();
    ASSERT_EQ(SSL_write(member.ssl.get(), &size, sizeof size), int{sizeof size});  // only the length, nothing after it
    const StatusOr<std::string> message = member.far->receive(soon());
    EXPECT_EQ(message.status().code(), StatusCode::kInvalidArgument) << message.status();
    EXPECT_THAT(std::string(message.status().message()),
                testing::AllOf(HasSubstr(member.far->peer()), HasSubstr(std::to_string(size))));
    EXPECT_LT(peak_memory_bytes() - before, int64_t{kLimit});
    EXPECT_EQ(member.far->receive(soon()).status().code(), StatusCode::kInvalidArgument);
    char nothing = 0;
    EXPECT_LE(SSL_read(member.ssl.get(), &nothing, 1), 0);
  }
}

TEST(ConnectionTest, a_length_and_its_message_may_come_byte_by_byte) {
  Host host;
  PlainMember member(host);
  const std::string bytes("\x03\0\0\0abc\0\0\0\0", 11);
  std::thread sender([&] {
    for (const char byte : bytes) {
      EXPECT_EQ(SSL_write(member.ssl.get(), &byte, 1), 1);
    }
  });
  EXPECT_EQ(member.far->receive(soon()).value(), "abc");
  EXPECT_EQ(member.far->receive(soon()).value(), "");
  sender.join();
}

// What OpenSSL sees from a sender: the number of records between two key changes.
TEST(ConnectionTest, the_key_changes_after_as_many_records_as_are_allowed) {
  struct Seen {
    int records = 0;
    int changes = 0;
    int max_records = 0;
  } seen;
  constexpr int kPerKey = 10;
  Host host({}, "127.0.0.1:0", key_of(), {.records_per_key = kPerKey});
  PlainMember member(host);
  SSL_set_msg_callback_arg(member.ssl.get(), &seen);
  SSL_set_msg_callback(member.ssl.get(), [](int write, int /*version*/, int type, const void* bytes, size_t size,
                                            SSL* /*ssl*/, void* arg) {
    auto& all = *static_cast<Seen*>(arg);
    const auto* first = static_cast<const unsigned char*>(bytes);
    if (write == 0 && type == SSL3_RT_INNER_CONTENT_TYPE && *first == SSL3_RT_APPLICATION_DATA) {
      all.max_records = std::max(all.max_records, ++all.records);
    } else if (write == 0 && type == SSL3_RT_HANDSHAKE && size > 0 && *first == SSL3_MT_KEY_UPDATE) {
      all.changes += 1;
      all.records = 0;
    }
  });
  constexpr size_t kBytes = 95 * TlsStream::kRecordBytes;
  const std::string sent = random_text(kBytes - 4, 3);
  std::thread sender([&] { EXPECT_TRUE(member.far->send(sent, soon()).ok()); });
  std::string got(kBytes, '\0');
  for (size_t at = 0; at < kBytes;) {
    const int count = SSL_read(member.ssl.get(), got.data() + at, static_cast<int>(kBytes - at));
    ASSERT_GT(count, 0);
    at += static_cast<size_t>(count);
  }
  sender.join();
  EXPECT_TRUE(got.substr(4) == sent);
  EXPECT_EQ(seen.changes, 9);
  EXPECT_EQ(seen.max_records, kPerKey);
  EXPECT_EQ(member.far->key_changes(), 9u);
}

TEST(ConnectionTest, a_deadline_while_nothing_comes_costs_nothing) {
  Host host;
  PlainMember member(host);
  EXPECT_EQ(member.far->receive(Deadline::after(milliseconds(20))).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(SSL_write(member.ssl.get(), "\x03\0\0\0a", 5), 5);  // an incomplete message
  EXPECT_EQ(member.far->receive(Deadline::after(milliseconds(20))).status().code(), StatusCode::kDeadlineExceeded);
  ASSERT_EQ(SSL_write(member.ssl.get(), "bc", 2), 2);
  EXPECT_EQ(member.far->receive(soon()).value(), "abc");
}

TEST(ConnectionTest, a_peer_that_does_not_read_is_given_up_at_the_deadline) {
  Ends ends({.max_message_bytes = 64 << 20});
  const Status status = ends.near->send(std::string(64 << 20, 'x'), Deadline::after(milliseconds(100)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(ends.near->peer()));
  EXPECT_EQ(ends.near->send("more", soon()).code(), StatusCode::kDeadlineExceeded);
  // The peer does not mistake half a message for a whole one.
  EXPECT_EQ(ends.far->receive(soon()).status().code(), StatusCode::kUnavailable);
}

TEST(ConnectionTest, silence_is_the_time_since_something_came) {
  Ends ends;
  ASSERT_EQ(ends.far->receive(Deadline::after(milliseconds(30))).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(ends.far->silence(), milliseconds(30));
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(ends.near->send("ping", soon()).ok());
  ASSERT_TRUE(ends.far->receive(soon()).ok());
  EXPECT_LE(ends.far->silence(), std::chrono::steady_clock::now() - before);
}

TEST(ConnectionTest, an_end_in_order_is_told_from_a_broken_connection) {
  Ends ends;
  ASSERT_TRUE(ends.near->send("last words", soon()).ok());
  ASSERT_TRUE(ends.near->end_sends(soon()).ok());
  EXPECT_EQ(ends.near->send("more", soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ends.far->receive(soon()).value(), "last words");
  EXPECT_EQ(ends.far->receive(soon()).status().code(), StatusCode::kOutOfRange);
  // The other direction is still open.
  ASSERT_TRUE(ends.far->send("an answer", soon()).ok());
  EXPECT_EQ(ends.near->receive(soon()).value(), "an answer");
  ends.far.reset();
  EXPECT_EQ(ends.near->receive(soon()).status().code(), StatusCode::kUnavailable);
}

TEST(ConnectionTest, abort_wakes_the_threads_that_wait) {
  Ends ends({.max_message_bytes = 64 << 20});
  Status received;
  Status sent;
  std::thread receiver([&] { received = ends.near->receive(Deadline::never()).status(); });
  std::thread sender([&] {
    (void)ends.near->send("a large one follows", soon());
    sent = ends.near->send(std::string(64 << 20, 'x'), Deadline::never());
  });
  EXPECT_TRUE(ends.far->receive(soon()).ok());
  ends.near->abort();
  receiver.join();
  sender.join();
  EXPECT_EQ(received.code(), StatusCode::kCancelled) << received;
  EXPECT_EQ(sent.code(), StatusCode::kCancelled) << sent;
}

TEST(ConnectionTest, what_came_before_the_peer_went_can_be_read_after_sending_failed) {
  signal(SIGPIPE, SIG_DFL);  // sending must not raise it: that would kill the process
  Ends ends;
  ASSERT_TRUE(ends.far->send("you are refused, because", soon()).ok());
  ASSERT_TRUE(ends.near->send("never read", soon()).ok());
  ends.far.reset();
  Status sent;
  while (sent.ok()) {
    sent = ends.near->send("into the void", soon());
  }
  EXPECT_EQ(sent.code(), StatusCode::kUnavailable);
  EXPECT_EQ(ends.near->receive(soon()).value_or("nothing"), "you are refused, because");
  EXPECT_EQ(ends.near->receive(soon()).status().code(), StatusCode::kUnavailable);
}

TEST(ConnectionTest, a_peer_that_is_killed_is_noticed_at_once) {
  Child child([](int told) {
    uint16_t port = 0;
    if (read(told, &port, sizeof port) != sizeof port) {
      return 1;
    }
    const auto connection = Connection::connect(SocketAddress{"127.0.0.1", port}, context_of(), {}, soon());
    (void)(*connection)->send("alive", soon());
    return static_cast<int>(read(told, &port, sizeof port));  // forever
  });
  Host host;
  child.tell(host.port());
  const std::unique_ptr<Connection> far = host.inbox.connection();
  ASSERT_NE(far, nullptr);
  EXPECT_EQ(far->receive(soon()).value(), "alive");
  child.kill();
  const StatusOr<std::string> message = far->receive(soon());
  EXPECT_EQ(message.status().code(), StatusCode::kUnavailable) << message.status();
  EXPECT_THAT(std::string(message.status().message()), HasSubstr(far->peer()));
}

}  // namespace
}  // namespace keepstep::net
