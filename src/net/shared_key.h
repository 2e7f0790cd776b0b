// A key that all members of a job hold and no one else: what TLS proves on every connection (RFC 8446, external PSK).
//
// It comes with an identity, a text that crosses the network in the clear. So the identity names the purpose of the
// key only: not the job, not a rank.
#pragma once

#include <array>
#include <cstddef>
#include <span>
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

  // For the connections between the ranks of one generation. `bytes` are kBytes random ones, the same for all ranks and
  // new in each generation. INVALID_ARGUMENT: another length.
  static StatusOr<SharedKey> data(std::span<const unsigned char> bytes);
  // A new one; bytes() is what the other ranks need. Aborts only if the system has no randomness.
  static SharedKey random_data();

  SharedKey(const SharedKey&) = default;
  SharedKey& operator=(const SharedKey&) = default;
  ~SharedKey();  // wipes the bytes

  std::string_view identity() const { return identity_; }
  std::span<const unsigned char, kBytes> bytes() const { return bytes_; }

 private:
  explicit SharedKey(std::string_view identity) : identity_(identity) {}

  std::string_view identity_;  // a literal
  std::array<unsigned char, kBytes> bytes_{};
};

}  // namespace keepstep::net
