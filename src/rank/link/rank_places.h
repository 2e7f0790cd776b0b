// Where the ranks of a generation on several nodes are, as Prepare tells a worker. A value, without I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "base/socket/tcp_socket.h"
#include "base/status.h"
#include "messages/rank_messages.h"

namespace keepstep::rank {

struct RankPlaces {
  std::vector<uint32_t> nodes;           // by rank
  std::vector<SocketAddress> addresses;  // by rank: where it listens

  size_t world() const { return nodes.size(); }
};

// INVALID_ARGUMENT, with the entry, for anything that makes no table of 1 to `max_world` ranks with a numeric address
// and a port each.
StatusOr<RankPlaces> rank_places_from(const std::vector<messages::TableEntry>& table, uint32_t max_world);

}  // namespace keepstep::rank
