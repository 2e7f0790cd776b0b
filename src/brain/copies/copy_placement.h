// Who keeps whose copy, with `copies=N`: one on the rank's own node, N-1 with ranks of other failure domains. Pure.
//
// No two copies of a rank's state, its own included, are ever in one domain. The load is as even as the domains allow:
// every rank keeps exactly N-1 copies of others unless a domain has more than one N-th of all ranks (see below).
//
// How: ranks form a circle, domain after domain. Rank p's copies are s, 2s, ... (N-1)s places further on, where s is
// the size of the largest domain. As long as N*s <= ranks, these N places are in N domains, and every rank keeps N-1.
// So copies are a few nodes away: few sets of nodes hold all copies of something, which leaves fewer ways to lose it. A
// node that takes over a lost node's ranks changes nothing, and a node that joins at the end changes little. A domain
// too large for this keeps one copy of every rank outside it, which is the most it can do; the others share the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/copies/seats.h"
#include "brain/types.h"

namespace keepstep::brain {

struct CopyPlacement {
  // By rank: the N-1 ranks that keep its copies, in addition to its own node.
  std::vector<std::vector<Rank>> keepers;
  bool operator==(const CopyPlacement&) const = default;
};

// `seats` is by rank. std::nullopt if no placement is possible; `why` (if not null) then says what is. O(ranks *
// copies).
std::optional<CopyPlacement> place_copies(const std::vector<Seat>& seats, uint32_t copies, std::string* why = nullptr);

}  // namespace keepstep::brain
