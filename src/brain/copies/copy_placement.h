// Who keeps whose copy, with `copies=N`: one on the rank's own node, N-1 with ranks of other failure domains. Pure.
//
// No two copies of a rank's state, its own included, are ever in one domain. The load is as even as the domains allow:
// every rank keeps exactly N-1 copies of others unless a domain has more than a N-th of all ranks (below).
//
// How: ranks stand in a circle, domain after domain; rank p's copies are s, 2s, ... (N-1)s places further on, s being
// the size of the largest domain. As long as N*s <= ranks these N places are in N domains, and everyone keeps N-1. So
// copies lie a few nodes further on (few sets of nodes hold all copies of something: fewer ways to lose it), a node
// that takes a lost one's ranks changes nothing, and a node that joins at the end changes little.
// A domain too large for that keeps one copy of every rank outside it, which is all it can; the others share the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/copies/seats.h"
#include "brain/types.h"

namespace keepstep::brain {

struct CopyPlacement {
  // By rank: the N-1 ranks that keep its copies, besides its own node.
  std::vector<std::vector<Rank>> keepers;
  bool operator==(const CopyPlacement&) const = default;
};

// `seats` by rank. Nothing if it cannot be; `why` (if not null) then says what is possible instead. O(ranks * copies).
std::optional<CopyPlacement> place_copies(const std::vector<Seat>& seats, uint32_t copies, std::string* why = nullptr);

}  // namespace keepstep::brain
