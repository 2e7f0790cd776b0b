// The nodes of a job whose ranks keepstep did not start: where their agents listen for each other.
#pragma once

#include <string>
#include <vector>

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

}  // namespace keepstep::agent
