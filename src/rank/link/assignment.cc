#include "rank/link/assignment.h"

#include <utility>

#include "rank/link/page.h"

namespace keepstep::rank {
namespace {

std::vector<brain::ParityBlock> parity_blocks(const nlohmann::json& body) {
  std::vector<brain::ParityBlock> blocks;
  for (const nlohmann::json& block : body.value("parity", nlohmann::json::array())) {
    blocks.push_back({block.at("members"), block.at("row")});
  }
  return blocks;
}

// What the table says of this node must be what else the agent gave us.
Status check_places(const Prepared& prepared) {
  const RankPlaces& places = prepared.places;
  const uint32_t self = prepared.assignment.rank;
  if (self >= places.world() || prepared.ranks.size() != prepared.workers.size()) {
    return absl::InvalidArgumentError("a rank table without this rank, or whose ranks do not match its workers");
  }
  std::vector<uint32_t> here;
  for (uint32_t rank = 0; rank < places.world(); ++rank) {
    if (places.nodes[rank] == places.nodes[self]) {
      here.push_back(rank);
    }
  }
  if (here != prepared.ranks) {
    return absl::InvalidArgumentError("a rank table that has other ranks on this node than the agent");
  }
  return absl::OkStatus();
}

StatusOr<Assignment> assignment_from(const Message& message, size_t world) {
  const nlohmann::json& body = message.body;
  const auto from = body.value("from", std::vector<uint32_t>{0, 0});
  if (from.size() != 2) {
    return absl::InvalidArgumentError("a division of the state of which number and size were not given");
  }
  return Assignment{.identity = message.identity,
                    .rank = body.at("rank"),
                    .world = static_cast<uint32_t>(world),
                    .version = body.at("version"),
                    .newcomer = body.at("newcomer"),
                    .resized = body.value("resized", false),
                    .entry = body.at("entry"),
                    .because = body.at("because"),
                    .environment = body.at("environment"),
                    .sharding = body.value("sharding", 0U),
                    .from = {from[0], from[1]}};
}

}  // namespace

StatusOr<Prepared> prepared_from(const Message& message, std::vector<Fd> fds, const comm::CommConfig& config) {
  const nlohmann::json& body = message.body;
  Prepared prepared;
  prepared.workers = body.at("workers").get<std::vector<uint32_t>>();
  const size_t here = prepared.workers.size();
  const bool several = body.contains("nodes");
  if (fds.size() != here + (several ? 2 : 1)) {
    return absl::InvalidArgumentError("a rank table whose descriptors do not match its ranks");
  }
  if (config.max_local != 0 && here > config.max_local) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a rank table with %d ranks on this node; %d is the most", here, config.max_local));
  }
  if (several) {
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.places, rank_places_from(body.at("nodes"), config.max_world));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(prepared.assignment, assignment_from(message, several ? prepared.places.world() : here));
  if (several) {
    prepared.ranks = body.at("ranks").get<std::vector<uint32_t>>();
    prepared.listener = std::move(fds.back());
    KEEPSTEP_RETURN_IF_ERROR(check_places(prepared));
    KEEPSTEP_ASSIGN_OR_RETURN(prepared.key, net::SharedKey::data(body.at("data_key").get<std::string>(),
                                                                 message.identity.term, message.identity.generation));
    prepared.protection = body.at("data_plane") == "plain" ? comm::Protection::kMac : comm::Protection::kTls;
  } else {
    for (uint32_t rank = 0; rank < here; ++rank) {
      prepared.ranks.push_back(rank);
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(prepared.generation,
                            SharedMemory::attach(std::move(fds[0]), generation_page_bytes(config)));
  const auto& page = *reinterpret_cast<const GenerationPage*>(prepared.generation.data());
  if (page.world != here || (page.across != 0) != (prepared.places.world() > here)) {
    return absl::InvalidArgumentError("a generation page for other ranks on this node, or elsewhere, than the table's");
  }
  for (size_t i = 0; i < here; ++i) {
    prepared.memory.push_back(std::move(fds[i + 1]));
  }
  return prepared;
}

Activation activation_from(const Message& message) {
  const nlohmann::json& body = message.body;
  return {body.at("version"),
          body.at("sources"),
          body.at("targets"),
          body.at("compare"),
          body.value("copies", std::vector<uint32_t>()),
          body.value("copies_from", std::vector<uint32_t>()),
          parity_blocks(body)};
}

}  // namespace keepstep::rank
