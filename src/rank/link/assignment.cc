#include "rank/link/assignment.h"

#include <utility>

#include "rank/link/page.h"

namespace keepstep::rank {
namespace {

// The table's places on this node must match the rest of the agent's message.
Status check_places(const Prepared& prepared) {
  const RankLocations& locations = prepared.locations;
  const auto& [self, world] = std::pair(prepared.assignment.rank, prepared.assignment.world);
  if (self >= world || prepared.ranks.size() != prepared.workers.size()) {
    return absl::InvalidArgumentError("a rank table without this rank, or whose ranks do not match its workers");
  }
  std::vector<uint32_t> here;
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (locations.nodes.empty() || locations.nodes[rank] == locations.nodes[self]) {
      here.push_back(rank);
    }
  }
  if (here != prepared.ranks) {
    return absl::InvalidArgumentError("a rank table that has other ranks on this node than the agent");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Prepared> prepared_from(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds,
                                 const comm::CommConfig& config) {
  Prepared prepared;
  prepared.workers = message.workers;
  prepared.ranks = message.ranks;
  const size_t here = prepared.workers.size();
  const bool several = !message.table.empty();
  if (fds.size() != here + (several ? 2 : 1)) {
    return absl::InvalidArgumentError("a rank table whose descriptors do not match its ranks");
  }
  if (config.max_local != 0 && here > config.max_local) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a rank table with %d ranks on this node; %d is the most", here, config.max_local));
  }
  if (several) {
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.locations, rank_locations_from(message.table, config.max_world));
  }
  prepared.assignment = {.identity = identity,
                         .rank = message.rank,
                         .world = static_cast<uint32_t>(several ? prepared.locations.world() : here),
                         .version = message.version,
                         .newcomer = message.newcomer,
                         .resized = message.resized,
                         .entry = message.entry,
                         .because = message.because,
                         .environment = message.environment,
                         .sharding = message.sharding,
                         .from = message.from};
  KEEPSTEP_RETURN_IF_ERROR(check_places(prepared));
  if (several) {
    prepared.listener = std::move(fds.back());
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.key, net::SharedKey::data(message.data_key, identity.term, identity.generation));
    prepared.protection = message.plain_data ? comm::Protection::kMac : comm::Protection::kTls;
  }
  KEEPSTEP_ASSIGN_OR_RETURN(prepared.generation,
                            SharedMemory::attach(std::move(fds[0]), generation_page_bytes(config)));
  const auto& page = *reinterpret_cast<const GenerationPage*>(prepared.generation.data());
  if (page.world != here || (page.across != 0) != (prepared.locations.world() > here)) {
    return absl::InvalidArgumentError("a generation page for other ranks on this node, or elsewhere, than the table's");
  }
  for (size_t i = 0; i < here; ++i) {
    prepared.memory.push_back(std::move(fds[i + 1]));
  }
  return prepared;
}

}  // namespace keepstep::rank
