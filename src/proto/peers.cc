#include "proto/peers.h"

#include <variant>

#include "proto/convert.h"

namespace keepstep::proto {
namespace {

constexpr std::chrono::seconds kAskAfter{3};  // so a peer that is silent for 15 s is considered dead

}  // namespace

std::string peer_name(brain::NodeId node) {
  return node == kCommand ? "a command" : node == kAnyNode ? "an agent" : "agent " + std::to_string(node);
}

net::Greeting greeting_of(brain::NodeId node) {
  return {.role = net::Role::kConnects, .from = peer_name(node), .to = kCoordinatorName};
}

Status check_answer(brain::NodeId node, const net::Greeting& got, std::string_view peer) {
  net::Greeting expected = greeting_of(node).answer();
  expected.term = got.term;
  return check_greeting(expected, got, peer);
}

net::LinkOptions link_options(const net::Address& address) {
  net::LinkOptions options{.max_message_bytes = kMaxMessageBytes};
  if (std::holds_alternative<SocketAddress>(address)) {
    options.ask_after = kAskAfter;
  }
  return options;
}

}  // namespace keepstep::proto
