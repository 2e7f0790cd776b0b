#include "proto/handshake.h"

namespace keepstep::proto {
namespace {

constexpr char kCoordinator[] = "coordinator";
constexpr char kAgent[] = "agent";

std::string claim(const Handshake& handshake) {
  return std::to_string(handshake.node) + "/" + std::to_string(handshake.term) + "/" + handshake.node_name;
}

}  // namespace

std::string Handshake::coordinator_proof(const JobToken& token) const {
  return token.prove(kCoordinator, coordinator_nonce, agent_nonce, claim(*this));
}

std::string Handshake::agent_proof(const JobToken& token) const {
  return token.prove(kAgent, agent_nonce, coordinator_nonce, claim(*this));
}

bool Handshake::is_coordinator(const JobToken& token, const std::string& proof) const {
  return token.verify(proof, kCoordinator, coordinator_nonce, agent_nonce, claim(*this));
}

bool Handshake::is_agent(const JobToken& token, const std::string& proof) const {
  return token.verify(proof, kAgent, agent_nonce, coordinator_nonce, claim(*this));
}

}  // namespace keepstep::proto
