// The proofs of the handshake between an agent and the coordinator, the same code on both sides.
//
// Each proof covers both nonces, the role, the node's id and name and the coordinator's term, so none can be replayed
// on another stream, for another node, in another term, or as the other role. Byte-exact: docs/design/wire_control.md.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "base/token.h"
#include "brain/types.h"

namespace keepstep::proto {

inline constexpr size_t kMaxNodeNameBytes = 256;
// In a hello instead of a node's number: give me one.
inline constexpr brain::NodeId kAnyNode = std::numeric_limits<brain::NodeId>::max();
// The same: not a node, but a user's command.
inline constexpr brain::NodeId kCommand = kAnyNode - 1;

struct Handshake {
  brain::NodeId node = 0;  // as in the hello
  std::string node_name;
  uint32_t term = 0;  // the coordinator's
  std::string agent_nonce;
  std::string coordinator_nonce;

  std::string coordinator_proof(const JobToken& token) const;
  std::string agent_proof(const JobToken& token) const;
  bool is_coordinator(const JobToken& token, const std::string& proof) const;
  bool is_agent(const JobToken& token, const std::string& proof) const;
};

}  // namespace keepstep::proto
