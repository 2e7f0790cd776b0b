#include "net/listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <sstream>
#include <thread>

#include "base/log.h"
#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

uint32_t loopback(uint32_t number) { return INADDR_LOOPBACK + number; }

void expect_exchange(Host& host, const StatusOr<std::unique_ptr<Connection>>& near) {
  ASSERT_TRUE(near.ok()) << near.status();
  const std::unique_ptr<Connection> far = host.inbox.connection();
  ASSERT_NE(far, nullptr);
  ASSERT_TRUE((*near)->send("hello", soon()).ok());
  EXPECT_EQ(far->receive(soon()).value(), "hello");
}

TEST(ListenerTest, it_listens_on_ipv4_ipv6_and_unix_sockets) {
  const PrivateFolder folder;
  const std::string path = (folder.path / "door").string();
  for (const std::string& where : {std::string("127.0.0.1:0"), std::string("[::1]:0"), "unix:" + path}) {
    Host host({}, where);
    expect_exchange(host, host.connect());
    EXPECT_EQ(parse_address(text_of(host.listener->address())).value(), host.listener->address());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenerTest, an_address_that_is_none_or_in_use_is_an_error) {
  for (const char* where : {"", "localhost:1", "127.0.0.1", "unix:", "unix:relative", "127.0.0.1:65536"}) {
    EXPECT_EQ(parse_address(where).status().code(), StatusCode::kInvalidArgument) << where;
  }
  const Host host;
  const auto second = Listener::start(host.listener->address(), host.context, {}, nullptr);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(text_of(host.listener->address())));
}

TEST(ListenerTest, a_stranger_that_sends_byte_by_byte_is_ended_at_the_deadline) {
  constexpr milliseconds kLimit{300};
  Host host({.handshake_limit = kLimit});
  const auto before = std::chrono::steady_clock::now();
  const Fd fd = plain_socket(host.port());
  // A hello of 16 KiB would take over a minute: an idle timeout alone would not end it.
  const std::string hello = std::string("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11) + std::string(16'378, 'x');
  size_t sent = 0;
  for (const char byte : hello) {
    pollfd end{fd.get(), POLLIN, 0};
    if (poll(&end, 1, 5) != 0 || send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1) {
      break;
    }
    ++sent;
  }
  const auto lasted = std::chrono::steady_clock::now() - before;
  EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kDeadlineExceeded) << host.inbox.refusal();
  EXPECT_GE(lasted, kLimit);
  EXPECT_LT(sent, hello.size());
  EXPECT_EQ(host.listener->counters().too_slow, 1u);
}

TEST(ListenerTest, eleven_hundred_idle_strangers_keep_no_member_out_and_cost_nothing_once_they_are_gone) {
  constexpr size_t kIdle = 1100;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2 * kIdle) {
    const rlimit wanted{std::min<rlim_t>(limit.rlim_max, 3 * kIdle), limit.rlim_max};
    if (wanted.rlim_cur < 2 * kIdle || setrlimit(RLIMIT_NOFILE, &wanted) != 0) {
      GTEST_SKIP() << "needs " << 2 * kIdle << " descriptors (ulimit -n)";
    }
  }
  Host host;
  const size_t before = open_descriptors();
  {
    std::vector<Fd> idle;
    for (size_t i = 0; i < kIdle; ++i) {
      idle.push_back(plain_socket(host.port(), loopback(1 + i % 100)));
    }
    const StatusOr<std::unique_ptr<Connection>> near = host.connect();
    expect_exchange(host, near);
    host.inbox.refusals(kIdle - ListenerOptions{}.max_strangers);
    EXPECT_LE(open_descriptors(), before + kIdle + 1 + ListenerOptions{}.max_strangers);
  }
  EXPECT_EQ(host.inbox.refusals(kIdle).size(), kIdle);
  EXPECT_GE(host.listener->counters().made_room, kIdle - ListenerOptions{}.max_strangers);
  expect_exchange(host, host.connect());  // in a later round: the refused connections are closed
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ListenerTest, a_flood_from_one_address_does_not_touch_strangers_of_another) {
  Host host({.max_strangers_per_source = 2});
  const Fd patient = plain_socket(host.port(), loopback(1));
  std::vector<Fd> flood;
  for (int i = 0; i < 100; ++i) {
    flood.push_back(plain_socket(host.port(), loopback(2)));
  }
  const std::vector<Status> refusals = host.inbox.refusals(98);
  ASSERT_EQ(refusals.size(), 98u);
  for (size_t i = 0; i < refusals.size(); ++i) {  // the oldest first
    EXPECT_EQ(refusals[i].code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refusals[i].message()), HasSubstr(local_address(flood[i].get()).value().text()));
  }
  TlsContext::Complaint complaint;
  const SslPointer ssl = host.context->start(Role::kConnects, &complaint).value();
  SSL_set_fd(ssl.get(), patient.get());
  EXPECT_EQ(SSL_connect(ssl.get()), 1);
}

TEST(ListenerTest, strangers_that_say_nothing_make_room_before_one_that_speaks) {
  Host host({.max_strangers = 4, .max_strangers_per_source = 4});
  const Fd speaks = plain_socket(host.port(), loopback(1));  // the oldest
  ASSERT_EQ(send(speaks.get(), "\x16", 1, 0), 1);            // the first byte of a handshake
  expect_exchange(host, host.connect());                     // so the byte has been read
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(plain_socket(host.port(), loopback(1)));
  }
  const std::vector<Status> refusals = host.inbox.refusals(17);
  ASSERT_EQ(refusals.size(), 17u);
  for (size_t i = 0; i < refusals.size(); ++i) {
    EXPECT_THAT(std::string(refusals[i].message()), HasSubstr(local_address(silent[i].get()).value().text()));
  }
}

TEST(ListenerTest, members_come_in_while_a_flood_goes_on) {
  Host host;
  std::atomic<bool> stop = false;
  std::thread flood([&] {
    std::deque<Fd> open;
    while (!stop.load()) {
      open.push_back(plain_socket(host.port(), loopback(1)));
      if (open.size() > 100) {
        open.pop_front();
      }
    }
  });
  host.inbox.refusals(200);
  for (int i = 0; i < 20; ++i) {
    expect_exchange(host, host.connect());
  }
  stop.store(true);
  flood.join();
}

TEST(ListenerTest, it_stops_at_once_and_those_it_let_in_live_on) {
  auto host = std::make_unique<Host>(ListenerOptions{.handshake_limit = std::chrono::hours(1)});
  const Fd idle = plain_socket(host->port());
  const auto near = host->connect();
  const std::unique_ptr<Connection> far = host->inbox.connection();
  host.reset();  // ends at once, not after an hour
  EXPECT_EQ(read_to_end(idle.get()), "");
  ASSERT_TRUE((*near)->send("still here", soon()).ok());
  EXPECT_EQ(far->receive(soon()).value(), "still here");
}

TEST(ListenerTest, without_descriptors_it_pauses_warns_once_and_goes_on) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  spdlog::warn("{}", "UBSan takes a descriptor when it first meets a type, so not below");
  log.str("");
  {
    Host host;
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    TlsContext::Complaint complaint;
    const SslPointer ssl = host.context->start(Role::kConnects, &complaint).value();
    SSL_set_fd(ssl.get(), fd.get());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(host.port());

    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int next = dup(fd.get());  // the lowest free descriptor
    close(next);
    const rlimit none{static_cast<rlim_t>(next), limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    while (host.listener->counters().accept_failures < 3) {
      std::this_thread::yield();
    }
    EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50 + 100));
    setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(SSL_connect(ssl.get()), 1);
    EXPECT_NE(host.inbox.connection(), nullptr);
  }
  spdlog::set_default_logger(before);
  const std::string lines = log.str();
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << lines;
  EXPECT_THAT(lines, HasSubstr("ulimit -n"));
}

TEST(ListenerTest, a_folder_that_others_can_enter_is_refused_by_both_sides) {
  const PrivateFolder folder;
  const Address address = UnixPath{(folder.path / "door").string()};
  Host host({}, text_of(address));
  chmod(folder.path.c_str(), 0710);
  EXPECT_EQ(host.connect().status().code(), StatusCode::kPermissionDenied);
  const auto second = Listener::start(UnixPath{(folder.path / "second").string()}, host.context, {}, nullptr);
  EXPECT_EQ(second.status().code(), StatusCode::kPermissionDenied) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("0710"));
  chmod(folder.path.c_str(), 0700);
  const auto third = Listener::start(address, host.context, {}, nullptr);
  EXPECT_EQ(third.status().code(), StatusCode::kAlreadyExists) << third.status();
  std::filesystem::create_directory_symlink(folder.path, folder.path / "link");
  EXPECT_FALSE(listen_at(UnixPath{(folder.path / "link" / "third").string()}).ok());
  expect_exchange(host, host.connect());
}

TEST(ListenerTest, a_folder_of_another_user_is_refused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root";
  }
  const PrivateFolder folder;
  ASSERT_EQ(chown(folder.path.c_str(), 65534, 65534), 0);
  EXPECT_EQ(listen_at(UnixPath{(folder.path / "door").string()}).status().code(), StatusCode::kPermissionDenied);
}

// The folder alone would keep the other user out. The test opens it, so only the check of the peer's user is left.
TEST(ListenerTest, a_process_of_another_user_is_refused_on_a_unix_socket) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root";
  }
  const PrivateFolder folder;
  const std::string path = (folder.path / "door").string();
  Child child([&](int told) {
    char go = 0;
    if (setgid(65534) != 0 || setuid(65534) != 0 || read(told, &go, 1) != 1) {
      return 1;
    }
    const Fd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return 2;
    }
    char byte = 0;
    return recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 3;
  });
  Host host({}, "unix:" + path);
  ASSERT_EQ(chmod(folder.path.c_str(), 0711), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  child.tell('g');
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(host.inbox.refusal().message()), HasSubstr("65534"));
}

}  // namespace
}  // namespace keepstep::net
