// Where ranks sit, as far as failing together goes: what placing copies and parity has in common. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Of one rank. Ranks of one domain may be lost together: a rack, a power supply. Where nothing is known of domains,
// each node is one of its own (the node's number will do).
struct Seat {
  NodeId node = 0;
  uint32_t domain = 0;
  bool operator==(const Seat&) const = default;
};

// The ranks of one domain, node after node: nodes by their lowest rank, then by rank.
struct DomainSeats {
  uint32_t domain = 0;
  std::vector<Rank> ranks;
};

// Domains by their lowest rank. Nothing if a node is in two domains or there is no rank; `why` says so then.
// Only the order of ranks counts, never the numbers of nodes and domains: a node that takes over the ranks of a lost
// one changes nothing.
std::optional<std::vector<DomainSeats>> seats_by_domain(const std::vector<Seat>& seats, std::string* why);

// "2 nodes", or "4 nodes in 2 failure domains" where that differs. For reasons.
std::string describe_seats(const std::vector<Seat>& seats);

}  // namespace keepstep::brain
