#include "rank/link/rank_places.h"

#include <string>

namespace keepstep::rank {
namespace {

constexpr uint64_t kMaxPort = 65535;

Status refuse(size_t entry, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrFormat("entry %d of the rank table %s", entry, why));
}

bool is_number(const nlohmann::json& value, uint64_t most) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= most;
}

}  // namespace

StatusOr<RankPlaces> rank_places_from(const nlohmann::json& entries, uint32_t max_world) {
  if (!entries.is_array() || entries.empty()) {
    return absl::InvalidArgumentError("a rank table without entries");
  }
  RankPlaces places;
  for (size_t i = 0; i < entries.size(); ++i) {
    const nlohmann::json& entry = entries[i];
    if (!entry.is_array() || entry.size() != 5 || !is_number(entry[0], ~uint32_t{0}) || !entry[1].is_string() ||
        !is_number(entry[2], kMaxPort) || !is_number(entry[3], max_world) || !is_number(entry[4], kMaxPort)) {
      return refuse(i, "is not [node, \"address\", port base, ranks, first local rank]: " + entry.dump());
    }
    const auto ranks = entry[3].get<uint32_t>();
    const uint64_t first_port = entry[2].get<uint64_t>() + entry[4].get<uint64_t>();
    if (ranks == 0 || ranks > max_world - places.world()) {
      return refuse(i,
                    absl::StrFormat("has %d ranks after %d others, %d is the most", ranks, places.world(), max_world));
    }
    if (entry[2] == 0 || first_port + ranks - 1 > kMaxPort) {
      return refuse(i, "has ranks without a port: " + entry.dump());
    }
    const SocketAddress first{entry[1].get<std::string>(), static_cast<uint16_t>(first_port)};
    if (!SocketAddress::parse(first.text()).ok()) {
      return refuse(i, "has no numeric address: " + entry.dump());
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      places.nodes.push_back(entry[0].get<uint32_t>());
      places.addresses.push_back({first.ip, static_cast<uint16_t>(first_port + rank)});
    }
  }
  return places;
}

}  // namespace keepstep::rank
