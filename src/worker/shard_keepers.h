// Which rank keeps the copies of whose shard, on other nodes (brain/copy_placement.h). Pure; all ranks compute the
// same.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace keepstep::worker {

class ShardKeepers {
 public:
  // `nodes`: by rank; empty: one node. `copies`: nodes that hold a copy, the rank's own included; as many as there are,
  // where there are fewer.
  ShardKeepers(const std::vector<uint32_t>& nodes, uint32_t copies);

  const std::vector<comm::Rank>& of(comm::Rank rank) const;
  std::vector<comm::Rank> kept_by(comm::Rank keeper) const;

 private:
  std::vector<std::vector<comm::Rank>> keepers_;  // by rank; empty: one node, or one copy
  std::vector<comm::Rank> none_;
};

}  // namespace keepstep::worker
