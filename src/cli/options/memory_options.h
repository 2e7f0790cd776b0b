// The options of `keepstep memory serve`, from words or from KEEPSTEP_MEMORY_... where a writer starts the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/socket/tcp_socket.h"
#include "base/token.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

struct MemoryOptions {
  uint64_t limit_bytes = 0;
  std::chrono::seconds lifetime{0};  // 0: never
  std::vector<SocketAddress> peers;
  std::optional<SocketAddress> listen;
  std::optional<JobToken> token;
  bool background = false;
  std::vector<std::string> mistakes;
};

inline constexpr std::chrono::seconds kMemoryLifetime = std::chrono::hours(24);
inline constexpr unsigned kMemoryPercent = 50;
inline constexpr uint64_t kLeastMemoryLimit = uint64_t{1} << 20;

// `total_bytes`: what the machine, or its cgroup, has.
MemoryOptions parse_memory_serve(const std::vector<std::string>& args, const Environ& environ, uint64_t total_bytes);

// "8GiB", "500MB", "4096", or "25%" of `total_bytes`. std::nullopt: none of these, or below kLeastMemoryLimit.
std::optional<uint64_t> memory_bytes(const std::string& text, uint64_t total_bytes);
// "90", "90s", "30min", "12h", "2d", or "never" (0).
std::optional<std::chrono::seconds> memory_lifetime(const std::string& text);

}  // namespace keepstep::cli
