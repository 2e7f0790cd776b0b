// The nodes of a job whose ranks keepstep did not start: where their agents listen for each other.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/socket/tcp_socket.h"
#include "base/token.h"
#include "brain/types.h"

namespace keepstep::agent {

struct StoreNodes {
  std::string list;  // the addresses as they were given
  std::vector<SocketAddress> addresses;
  brain::NodeId self = 0;  // whose address this node's agent listens at
  JobToken token;          // all of them have it
};

// For messages: "node 1 (10.0.0.8:29411)".
inline std::string node_with_address(brain::NodeId node, const SocketAddress& address) {
  return absl::StrFormat("node %d (%s)", node, address.text());
}

}  // namespace keepstep::agent
