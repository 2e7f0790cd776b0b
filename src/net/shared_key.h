// A key that all members of a job hold and no one else: what TLS proves on every connection (RFC 8446, external PSK).
//
// It comes with an identity, a text that crosses the network in the clear. So the identity names the purpose of the
// key only: not the job, not a rank. The identity of a data key also has its generation, so that a peer that is in
// another one says so, and is not taken for a stranger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/token.h"

namespace keepstep::net {

class SharedKey {
 public:
  static constexpr size_t kBytes = 32;

  // For the connections between agents and the coordinator: HKDF-SHA-256 (RFC 5869) of the job token, without salt,
  // with info "keepstep control 1:" + `rdzv_id`. Jobs with the same token and different rendezvous ids cannot talk to
  // each other. The token cannot be computed from the key.
  static SharedKey control(const JobToken& token, std::string_view rdzv_id);

  // For the connections between the ranks of one generation. Random bytes come first, the same for all agents:
  // `secret`, of one run of a coordinator. A generation's key is derived from them, like the control key, with info
  // "keepstep data 1:TERM/GENERATION". Neither the secret nor another generation's key can be computed from it.
  static std::string random_data_secret();  // aborts only if the system has no randomness
  // INVALID_ARGUMENT: `secret` has not kBytes bytes.
  static StatusOr<SharedKey> data_of(std::string_view secret, uint32_t term, uint32_t generation);
  // What data_of() gave, from its bytes() as hex. INVALID_ARGUMENT: that is not hex of kBytes bytes.
  static StatusOr<SharedKey> data(std::string_view hex, uint32_t term, uint32_t generation);
  std::string hex() const;

  SharedKey(const SharedKey&) = default;
  SharedKey& operator=(const SharedKey&) = default;
  ~SharedKey();  // wipes the bytes

  std::string identity() const;
  std::span<const unsigned char, kBytes> bytes() const { return bytes_; }

 private:
  explicit SharedKey(std::string_view purpose, uint32_t term = 0, uint32_t generation = 0)
      : purpose_(purpose), term_(term), generation_(generation) {}

  std::string_view purpose_;  // a literal
  uint32_t term_;             // of a data key
  uint32_t generation_;
  std::array<unsigned char, kBytes> bytes_{};
};

}  // namespace keepstep::net
