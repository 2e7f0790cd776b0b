// The job token: a secret shared by all members of a job. It never crosses the network: keys are derived from it
// (net/shared_key.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep {

// Shorter tokens could be found by brute force from a recorded handshake (docs/design/security.md).
inline constexpr size_t kLeastTokenBytes = 32;

class JobToken {
 public:
  // 32 random bytes as hex. Aborts only if the system has no randomness.
  static JobToken random();
  // INVALID_ARGUMENT unless it has kLeastTokenBytes to 4096 bytes after trimming white space.
  static StatusOr<JobToken> parse(std::string_view text);

  const std::string& secret() const { return secret_; }

 private:
  explicit JobToken(std::string secret) : secret_(std::move(secret)) {}
  std::string secret_;
};

// 16 random bytes.
std::string random_nonce();
// For names and seeds; differs between forked processes. Does not use std::random_device: the one in Debian 12's static
// libstdc++ needs a newer C library than everything else in a wheel.
uint64_t random_number();
// Lower-case hex of `bytes`.
std::string to_hex(std::string_view bytes);

}  // namespace keepstep
