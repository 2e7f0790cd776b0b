// The two ends of a connection between an agent, or a user's command, and the coordinator: what they are called in its
// greeting (net/greeting.h), and how it is kept.
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
// In a hello instead of a node's number: give me one.
inline constexpr brain::NodeId kAnyNode = std::numeric_limits<brain::NodeId>::max();
// The same: not a node, but a user's command.
inline constexpr brain::NodeId kCommand = kAnyNode - 1;

inline constexpr char kCoordinatorName[] = "coordinator";
// Whoever says `node` in a hello: "agent 3", "an agent", "a command".
std::string peer_name(brain::NodeId node);

// What that one greets the coordinator with; it does not know the term yet.
net::Greeting greeting_of(brain::NodeId node);
// OK if `got`, from the peer at address `peer`, is what the coordinator answers to that, in whatever term.
Status check_answer(brain::NodeId node, const net::Greeting& got, std::string_view peer);

// Over TCP either end of an agent's connection gives signs of life, and a command answers those that it gets: a node
// that lost its power or its network says nothing. The other end waits long enough for a machine under load. On one
// machine the kernel closes the sockets of the dead, and a job that is suspended for a while must not lose its
// connection.
net::LinkOptions link_options(const net::Address& address);

}  // namespace keepstep::proto
