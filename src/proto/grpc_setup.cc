#include "proto/grpc_setup.h"

#include <arpa/inet.h>
#include <grpc/support/log.h>

#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "proto/convert.h"

namespace keepstep::proto {
namespace {

thread_local std::string newest_error;

bool is_numeric(int family, const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(family, host.c_str(), bytes) == 1;
}

}  // namespace

void setup_grpc() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_function([](gpr_log_func_args* line) {
    if (line->severity == GPR_LOG_SEVERITY_ERROR) {
      newest_error = line->message;
      spdlog::info("gRPC: {}", line->message);
    } else {
      spdlog::debug("gRPC: {}", line->message);
    }
  });
}

std::string take_grpc_error() { return std::exchange(newest_error, {}); }

grpc::ChannelArguments channel_arguments(const std::string& address, int connect_ms) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, connect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  if (!address.starts_with("unix")) {  // the coordinator does the same, and says why
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  }
  // Not grpc.minimal_stack: it would leave out the filter that enforces this limit.
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return arguments;
}

std::string target(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return address;
  }
  const std::string host = address.substr(0, colon);
  if (is_numeric(AF_INET, host)) {
    return "ipv4:" + address;
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']' &&
      is_numeric(AF_INET6, host.substr(1, host.size() - 2))) {
    return "ipv6:" + address;
  }
  return address;
}

}  // namespace keepstep::proto
