// Reed-Solomon groups, with `parity=k+m`: which ranks' states are coded together, and who keeps the parity. Pure.
//
// Every rank is a member of one group: its own node holds its state unencoded, and that is the group's data block. A
// group has up to k members and m parity blocks. Each parity block is computed and kept by one rank of another domain.
// All k+m blocks are in different failure domains, so a group survives the loss of any m of them. A block has the size
// of the largest member's state.
//
// There are no more groups than k and the size of the largest domain require. Among groups made of the same domains,
// sizes differ by at most one. Parity is distributed so that blocks per rank are as even between domains as the groups
// allow (exactly: a min-cost flow), and even to within one block inside a domain.
//
// Domains are combined into sets of k+m, or slightly more, that divide well by k. So few combinations of nodes share a
// group, a node that takes over a lost node's ranks changes nothing, and nodes that join at the end change only the
// last set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/copies/seats.h"
#include "brain/types.h"

namespace keepstep::brain {

struct ParityGroup {
  std::vector<Rank> members;  // block i of the code is the state of members[i]; 1 to k of them
  std::vector<Rank> keepers;  // m; keepers[j] computes and keeps parity block j
  bool operator==(const ParityGroup&) const = default;
};

struct ParityPlacement {
  std::vector<ParityGroup> groups;
  std::vector<uint32_t> group_of;  // by rank: the group that it is a member of
  bool operator==(const ParityPlacement&) const = default;
};

inline constexpr uint32_t kMaxBlocksOfGroup = 255;  // k + m: the most that the code's field can distinguish

// `seats` is by rank. std::nullopt if no placement is possible; `why` (if not null) then says what is.
std::optional<ParityPlacement> place_parity(const std::vector<Seat>& seats, uint32_t data, uint32_t parity,
                                            std::string* why = nullptr);

}  // namespace keepstep::brain
