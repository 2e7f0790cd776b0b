// Which rank, on another node, keeps the copies or the parity of which shard (brain/copies/copy_placement.h,
// brain/copies/parity_placement.h). Pure; all ranks compute the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/copies/parity_placement.h"
#include "brain/copies/parity_rebuild.h"
#include "brain/types.h"

namespace keepstep::rank {

// The requested protection: copies, or groups of up to `data` ranks with `parity` blocks each, if that is not 0.
struct Protection {
  uint32_t copies = 2;  // nodes that hold a copy, the rank's own included
  uint32_t data = 0;
  uint32_t parity = 0;
};

// Of one rank.
struct ShardDuties {
  std::vector<brain::Rank> keepers;             // of its copies
  std::vector<brain::Rank> kept;                // whose copies it keeps
  std::vector<brain::Rank> parity_keepers;      // of its group
  std::vector<brain::ParityBlock> parity_kept;  // which blocks it keeps
};

class ShardKeepers {
 public:
  // `nodes`: by rank; empty: one node. With too few nodes, protects as far as possible: as many copies as there are
  // nodes; smaller groups with the same parity, or copies if there are too few nodes even for that.
  ShardKeepers(const std::vector<uint32_t>& nodes, Protection wanted);

  ShardDuties of(brain::Rank rank) const;
  // Why parity is not as requested, and what is used instead; empty if it is.
  const std::string& shortfall() const { return shortfall_; }

 private:
  std::vector<std::vector<brain::Rank>> keepers_;  // by rank; empty: one node, or one copy, or parity
  std::optional<brain::ParityPlacement> parity_;
  std::string shortfall_;
};

}  // namespace keepstep::rank
