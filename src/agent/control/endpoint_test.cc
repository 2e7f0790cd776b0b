#include "agent/control/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include <thread>

#include "base/runtime_folder_testing.h"

namespace keepstep::agent {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr const char* kIp = "127.0.0.1";

sigset_t no_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  return signals;
}

// A port of this machine at which nobody listens while this value lives.
struct SilentPort {
  Fd listener = *listen_tcp({kIp, 0});
  uint16_t port = local_address(listener.get())->port;
};

TEST(Endpoint, addresses_are_the_same_as_text_and_in_the_table) {
  for (const char* text : {"10.0.0.7", "fd00::7", "::1"}) {
    EXPECT_EQ(text_of(*address_from_text(text)), text);
  }
  EXPECT_EQ(*address_from_text("10.0.0.7"), brain::ipv4(10, 0, 0, 7));
  EXPECT_FALSE(address_from_text("node-a").ok());
}

TEST(Endpoint, one_launcher_of_the_machine_claims_it_until_it_ends) {
  const OwnRuntimeFolder own;
  {
    const auto first = claim_endpoint({"fd00:1111:2222:3333:4444:5555:6666:7777", 65535});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(first->held());
    const auto second = claim_endpoint({"fd00:1111:2222:3333:4444:5555:6666:7777", 65535});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_FALSE(second->held());
    EXPECT_TRUE(claim_endpoint({"10.0.0.7", 65535})->held());
  }
  EXPECT_TRUE(own.empty());
}

TEST(Endpoint, a_route_names_both_of_its_ends) {
  const SilentPort listening;
  int got = 0;
  const auto route = find_route("localhost", listening.port, milliseconds(5000), no_signals(), got);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->coordinator, (SocketAddress{kIp, listening.port}));
  EXPECT_EQ(route->local_ip, kIp);
}

TEST(Endpoint, a_node_waits_for_one_that_starts_later) {
  const NodePorts held = *open_ports(kIp, 1, 1);  // the second port is ours and nobody listens
  const auto port = static_cast<uint16_t>(held.base + 1);
  Fd listener;
  std::thread later([&] {
    // Not a synchronization: whichever is first, the other must find it.
    listener = *listen_tcp({kIp, port});
  });
  int got = 0;
  const auto route = find_route(kIp, port, milliseconds(10000), no_signals(), got);
  later.join();
  EXPECT_TRUE(route.ok()) << route.status();
}

TEST(Endpoint, nobody_there_is_said_with_what_was_tried) {
  const NodePorts held = *open_ports(kIp, 1, 1);
  int got = 0;
  const auto route = find_route(kIp, static_cast<uint16_t>(held.base + 1), milliseconds(300), no_signals(), got);
  EXPECT_EQ(route.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(route.status().message()), HasSubstr("127.0.0.1:"));
  EXPECT_THAT(std::string(route.status().message()), HasSubstr("Connection refused"));
  EXPECT_THAT(std::string(route.status().message()), HasSubstr("0.3 s"));
}

TEST(Endpoint, a_name_that_nobody_knows_is_named) {
  int got = 0;
  const auto route = find_route("no-such-host.invalid", 1, milliseconds(100), no_signals(), got);
  EXPECT_THAT(std::string(route.status().message()), HasSubstr("'no-such-host.invalid' cannot be resolved"));
}

TEST(Endpoint, a_signal_ends_the_wait) {
  sigset_t signals = no_signals();
  sigaddset(&signals, SIGTERM);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  const NodePorts held = *open_ports(kIp, 1, 1);
  pthread_kill(pthread_self(), SIGTERM);  // pending from now on
  int got = 0;
  const auto route = find_route(kIp, static_cast<uint16_t>(held.base + 1), milliseconds(60000), signals, got);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(route.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(got, SIGTERM);
}

TEST(Endpoint, the_coordinator_listens_at_an_address_of_its_machine_only) {
  EXPECT_EQ(own_address("127.0.0.1", 4711, "node 0")->text(), "127.0.0.1:4711");
  const auto other = own_address("192.0.2.1", 4711, "node 0 must run there");  // TEST-NET-1: belongs to nobody
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("node 0 must run there: '192.0.2.1' means 192.0.2.1, which is no address of this machine"));
}

TEST(Endpoint, ports_lie_side_by_side_and_listen_for_the_ranks) {
  const NodePorts ports = *open_ports(kIp, 3, 2);
  ASSERT_EQ(ports.listeners.size(), 3);
  ASSERT_EQ(ports.reserved.size(), 2);
  for (uint16_t i = 0; i < 5; ++i) {
    const Fd& fd = i < 3 ? ports.listeners[i] : ports.reserved[i - 3];
    EXPECT_EQ(local_address(fd.get())->port, ports.base + i);
    int listens = 0;
    socklen_t size = sizeof listens;
    getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    EXPECT_EQ(listens, i < 3);
  }
}

TEST(Endpoint, a_reserved_port_is_free_for_a_store_and_nobody_else_gets_it_by_chance) {
  const NodePorts ports = *open_ports(kIp, 1, 1);
  sockaddr_in name{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(ports.base + 1))};
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Fd stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(bind(stranger.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_TRUE(listen_tcp({kIp, static_cast<uint16_t>(ports.base + 1)}).ok()) << "with SO_REUSEADDR, as torch's store";
}

}  // namespace
}  // namespace keepstep::agent
