// What gRPC endpoints of keepstep share: where its log goes, and settings that are safe and quick.
#pragma once

#include <grpcpp/support/channel_arguments.h>

#include <string>

namespace keepstep::proto {

// Either side asks a silent other one this often, and gives it up after so long: long enough for a machine under load.
inline constexpr int kKeepaliveMs = 5000;
inline constexpr int kKeepaliveTimeoutMs = 10000;

// Once per process suffices, more does no harm. gRPC's log lines go to the one logger, at most as "info" (what matters
// to a user comes back as a Status too). abseil's search for deadlocks is switched off: Debian builds it in, and every
// lock that gRPC takes would go through one lock of the whole process.
void setup_grpc();

// The newest error that gRPC logged on this thread since the last call, or empty. The only way to learn why a server
// cannot listen.
std::string take_grpc_error();

// Settings of the agent's channel to `address`: no proxy from the environment, no service config by DNS, a connection
// of its own, messages of at most kMaxMessageBytes. `connect_ms`: how long one attempt to connect may take.
grpc::ChannelArguments channel_arguments(const std::string& address, int connect_ms = 1000);

// The gRPC target for `address`: numeric ones get a scheme that asks no name service; unix:, unix-abstract: and other
// schemes stay; what is left is a host name for DNS.
std::string target(const std::string& address);

}  // namespace keepstep::proto
