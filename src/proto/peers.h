// The two ends of a connection between an agent, or a user's command, and the coordinator: their names in its greeting
// (net/greeting.h), and how it is kept alive.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "brain/types.h"
#include "net/address.h"
#include "net/greeting.h"
#include "net/hub.h"

namespace keepstep::proto {

inline constexpr size_t kMaxNodeNameBytes = 256;
// In a hello, instead of a node's number: requests one.
inline constexpr brain::NodeId kAnyNode = std::numeric_limits<brain::NodeId>::max();
// Likewise: not a node, but a user's command.
inline constexpr brain::NodeId kCommand = kAnyNode - 1;

inline constexpr char kCoordinatorName[] = "coordinator";
// The name of a peer that sends `node` in its hello: "agent 3", "an agent", "a command".
std::string peer_name(brain::NodeId node);

// That peer's greeting to the coordinator; it does not know the term yet.
net::Greeting greeting_of(brain::NodeId node);
// OK if `got`, from the peer at address `peer`, is the coordinator's answer to that, in any term.
Status check_answer(brain::NodeId node, const net::Greeting& got, std::string_view peer);

// Over TCP, both ends of an agent's connection send signs of life, and a command answers those it gets, because a node
// that lost its power or its network sends nothing. The limit is long enough for a machine under load. On a single
// machine the kernel closes the sockets of the dead, and a job that is suspended for a while must not lose its
// connection.
net::LinkOptions link_options(const net::Address& address);

}  // namespace keepstep::proto
