// The job token: proves on every connection that both sides belong to the job, without sending the token.
//
// Challenge and response with HMAC-SHA-256 (RFC 2104): each side sends a nonce, each answers with
// HMAC(token, role || nonces || identity). Compared in constant time.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep {

inline constexpr size_t kNonceBytes = 16;
// Handshakes can be recorded, and short tokens then tried out (docs/design/security.md).
inline constexpr size_t kLeastTokenBytes = 32;

class JobToken {
 public:
  // 32 random bytes as hex. Aborts only if the system has no randomness.
  static JobToken random();
  // INVALID_ARGUMENT unless kLeastTokenBytes to 4096 bytes after trimming white space.
  static StatusOr<JobToken> parse(std::string_view text);

  // The proof that the holder of the token, acting as `role`, saw both nonces and claims `identity`.
  std::string prove(std::string_view role, std::string_view own_nonce, std::string_view peer_nonce,
                    std::string_view identity) const;
  bool verify(std::string_view proof, std::string_view role, std::string_view own_nonce, std::string_view peer_nonce,
              std::string_view identity) const;

  const std::string& secret() const { return secret_; }

 private:
  explicit JobToken(std::string secret) : secret_(std::move(secret)) {}
  std::string secret_;
};

// kNonceBytes random bytes.
std::string random_nonce();
// Lower-case hex of `bytes`.
std::string to_hex(std::string_view bytes);

}  // namespace keepstep
