// A key that only the members of a job hold: TLS proves it on every connection (RFC 8446, external PSK).
//
// The key's identity crosses the network in the clear, so it names only the key's purpose, not the job or a rank. The
// identity of a data key also contains its generation, so a peer in another generation is recognized as such and not
// mistaken for a stranger.
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
  // with the info "keepstep control 1:" + `rdzv_id`. Jobs with the same token and different rendezvous ids cannot talk
  // to each other. The token cannot be computed from the key.
  static SharedKey control(const JobToken& token, std::string_view rdzv_id);

  // For the connections between memory servers (src/memory_server): likewise, with the info "keepstep memory 1".
  static SharedKey memory(const JobToken& token);

  // For the connections between the agents of a job that another launcher started (agent/nodes/store_lines.h): like the
  // control key, with the info "keepstep store 1:" + `job`.
  static SharedKey store(const JobToken& token, std::string_view job);

  // For the connections between the ranks of one generation. A generation's key is derived like the control key, with
  // the info "keepstep data 1:TERM/GENERATION", from `secret`: random bytes that all agents get from one run of a
  // coordinator. Neither the secret nor another generation's key can be computed from a key.
  static std::string random_data_secret();  // aborts only if the system has no randomness
  // INVALID_ARGUMENT: `secret` does not have kBytes bytes.
  static StatusOr<SharedKey> data_of(std::string_view secret, uint32_t term, uint32_t generation);
  // Restores a key made by data_of() from its hex(). INVALID_ARGUMENT: `hex` is not kBytes bytes in hex.
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
