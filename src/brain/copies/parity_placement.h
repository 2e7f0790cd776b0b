// Reed-Solomon groups, with `parity=k+m`: which ranks' states are coded together, and who keeps the parity. Pure.
//
// Every rank is in one group as a member: its own node holds its state as it is, and that is the group's data block.
// A group has up to k members and m parity blocks, each computed and kept by one rank of another domain: all its k+m
// blocks are in different failure domains, so that a group outlives the loss of any m of these. A block has the size of
// the largest member's state.
//
// There are no more groups than k, and the size of the largest domain, ask for; sizes of groups differ by at most one
// among the groups that are made of the same domains. Parity is dealt out so that blocks per rank are as even between
// domains as the groups allow (exactly: a flow of least cost), and within a domain to within one.
//
// Domains are taken together in sets of k+m, or some more, that divide well by k: few combinations of nodes have a
// group between them, a node that takes a lost one's ranks changes nothing, and nodes that join at the end change the
// last set only.
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

inline constexpr uint32_t kMaxBlocksOfGroup = 255;  // k + m: what the code's field can tell apart

// `seats` by rank. Nothing if it cannot be; `why` (if not null) then says what is possible instead.
std::optional<ParityPlacement> place_parity(const std::vector<Seat>& seats, uint32_t data, uint32_t parity,
                                            std::string* why = nullptr);

}  // namespace keepstep::brain
