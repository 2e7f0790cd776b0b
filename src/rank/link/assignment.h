// A rank's place in a generation, and how it gets its state: the contents of the agent's Prepare and Activate. Value
// types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/copies/shard_copies.h"
#include "brain/types.h"
#include "comm/comm_config.h"
#include "comm/tcp/tcp_config.h"
#include "messages/rank_messages.h"
#include "rank/link/rank_locations.h"

namespace keepstep::rank {

// A rank in a generation, from Prepare.
struct Assignment {
  brain::Identity identity;
  uint32_t rank = 0;
  uint32_t world = 0;
  brain::Version version = 0;
  bool newcomer = false;
  bool resized = false;  // the world size differs from that of the generation that formed last
  std::string entry;     // "start", "recovery", "replacement", ...: the reason for this entry of the loop
  std::string because;
  messages::Texts environment;  // RANK, WORLD_SIZE, ...
  // How sharded state is divided (brain::Sharding), and the sharding in which `version` is kept: the same or another.
  uint32_t sharding = 0;
  brain::Sharding from;
};

using Activation = messages::Activate;

// Prepare, with the descriptors that came with it.
struct Prepared {
  Assignment assignment;
  std::vector<uint32_t> workers;      // on this node, by rank
  std::vector<uint32_t> ranks;        // of those workers
  RankLocations locations;            // of all ranks; empty: all are on this node
  Fd listener;                        // where other nodes reach this rank
  std::optional<net::SharedKey> key;  // for the connections to them
  comm::Protection protection = comm::Protection::kTls;
  SharedMemory generation;
  std::vector<Fd> memory;  // of `workers`
  Fd inherited;            // memory of the rank's previous process (KeptCapsules); invalid: none
};

// INVALID_ARGUMENT: the table's entry for this node contradicts the rest of the message.
StatusOr<Prepared> prepared_from(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds,
                                 const comm::CommConfig& config);

}  // namespace keepstep::rank
