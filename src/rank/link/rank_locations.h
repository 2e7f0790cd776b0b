// Where the ranks of a generation on several nodes are, from Prepare. A value, without I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "base/socket/tcp_socket.h"
#include "base/status.h"
#include "messages/rank_messages.h"

namespace keepstep::rank {

struct RankLocations {
  std::vector<uint32_t> nodes;           // by rank
  std::vector<SocketAddress> addresses;  // by rank: its listening address

  size_t world() const { return nodes.size(); }
};

// INVALID_ARGUMENT, naming the entry, unless the table has 1 to `max_world` ranks, each with a numeric address and a
// port.
StatusOr<RankLocations> rank_locations_from(const std::vector<messages::TableEntry>& table, uint32_t max_world);

}  // namespace keepstep::rank
