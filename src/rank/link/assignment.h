// A rank's place in a generation, and how it gets its state: what the agent says in Prepare and Activate. Value types.
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
#include "comm/communicator.h"
#include "comm/tcp/tcp_config.h"
#include "messages/rank_messages.h"
#include "rank/link/rank_places.h"

namespace keepstep::rank {

// A rank in a generation, as Prepare gave it.
struct Assignment {
  brain::Identity identity;
  uint32_t rank = 0;
  uint32_t world = 0;
  brain::Version version = 0;
  bool newcomer = false;
  bool resized = false;  // the world is not that of the generation that formed last
  std::string entry;     // "start", "redo", "replacement", ...: why this entry of the loop happens
  std::string because;
  messages::Texts environment;  // RANK, WORLD_SIZE, ...
  // How sharded state is divided (brain::Sharding), and the division in which `version` is kept: the same or another.
  uint32_t sharding = 0;
  brain::Sharding from;
};

using Activation = messages::Activate;

// Prepare, with what came beside it.
struct Prepared {
  Assignment assignment;
  std::vector<uint32_t> workers;      // on this node, by rank
  std::vector<uint32_t> ranks;        // theirs
  RankPlaces places;                  // of all ranks; empty: all are on this node
  Fd listener;                        // where other nodes reach this rank
  std::optional<net::SharedKey> key;  // of the connections to them
  comm::Protection protection = comm::Protection::kTls;
  SharedMemory generation;
  std::vector<Fd> memory;  // of `workers`
  Fd inherited;            // what the rank's process before kept (KeptCapsules); invalid: nothing
};

// INVALID_ARGUMENT: what the table says of this node is not what else the agent gave.
StatusOr<Prepared> prepared_from(brain::Identity identity, const messages::Prepare& message, std::vector<Fd> fds,
                                 const comm::CommConfig& config);

}  // namespace keepstep::rank
