// The first message in each direction of a connection: who each side is, and what the connection is for.
//
// A shared key proves that the peer is a member of the job, not which one (RFC 9257, sections 4 and 5). An attacker who
// can redirect traffic may connect agent A to agent C instead of B, or to itself ("Selfie", Drucker and Gueron, 2019).
// TLS does not detect that, so both sides state who they are and check it. Pure: bytes in, bytes out.
//
// The connecting side speaks first. The other side decides from the greeting it reads, and replies with `answer()` of
// the greeting it expected. A side that does not know a field yet, such as the coordinator's term, copies it from the
// peer's greeting into the expected one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace keepstep::net {

enum class Role : uint8_t { kConnects = 1, kAccepts = 2 };

struct Greeting {
  Role role = Role::kConnects;  // of the sender
  std::string from;             // the sender: "agent 3", "coordinator", "rank 12"; at most kMaxNameBytes
  std::string to;               // the intended receiver
  uint32_t term = 0;
  uint32_t generation = 0;
  uint64_t stream = 0;  // which of the connections between these two; the caller defines its meaning
  bool operator==(const Greeting&) const = default;

  static constexpr size_t kMaxNameBytes = 255;
  static constexpr size_t kMaxBytes = 22 + 2 * (1 + kMaxNameBytes);

  // The layout, integers little endian:
  //   "KSG1"  role u8  zero u8  term u32  generation u32  stream u64  length u8, from  length u8, to
  // INVALID_ARGUMENT: a name is too long.
  StatusOr<std::string> encode() const;
  // INVALID_ARGUMENT: `bytes` is not a greeting.
  static StatusOr<Greeting> decode(std::string_view bytes);

  // The greeting that the peer sends if it means the same connection.
  Greeting answer() const;
};

// OK if `got`, from the peer at address `peer`, equals `expected`. Otherwise FAILED_PRECONDITION, with every field that
// differs: the connection must not be used.
Status check_greeting(const Greeting& expected, const Greeting& got, std::string_view peer);

}  // namespace keepstep::net
