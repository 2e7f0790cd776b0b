#include "rank/link/rank_locations.h"

#include <string>

namespace keepstep::rank {
namespace {

constexpr uint64_t kMaxPort = 65535;

Status refuse(size_t entry, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrFormat("entry %d of the rank table %s", entry, why));
}

}  // namespace

StatusOr<RankLocations> rank_locations_from(const std::vector<messages::TableEntry>& table, uint32_t max_world) {
  if (table.empty()) {
    return absl::InvalidArgumentError("a rank table without entries");
  }
  RankLocations locations;
  for (size_t i = 0; i < table.size(); ++i) {
    const messages::TableEntry& entry = table[i];
    const uint64_t first_port = uint64_t{entry.port_base} + entry.first_local;
    if (entry.ranks == 0 || entry.ranks > max_world - locations.world()) {
      return refuse(i, absl::StrFormat("has %d ranks after %d others, %d is the most", entry.ranks, locations.world(),
                                       max_world));
    }
    if (entry.port_base == 0 || first_port + entry.ranks - 1 > kMaxPort) {
      return refuse(i, absl::StrFormat("has ranks without a port: %d from %d on", entry.ranks, first_port));
    }
    const SocketAddress first{entry.address, static_cast<uint16_t>(first_port)};
    if (!SocketAddress::parse(first.text()).ok()) {
      return refuse(i, "has no numeric address: " + entry.address);
    }
    for (uint32_t rank = 0; rank < entry.ranks; ++rank) {
      locations.nodes.push_back(entry.node);
      locations.addresses.push_back({first.ip, static_cast<uint16_t>(first_port + rank)});
    }
  }
  return locations;
}

}  // namespace keepstep::rank
