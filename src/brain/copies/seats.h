// Where ranks are located, as far as failing together goes: what copy and parity placement share. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Of one rank. Ranks of one domain may be lost together: a rack, a power supply. If domains are unknown, each node is
// its own domain (the node's id will do).
struct Seat {
  NodeId node = 0;
  uint32_t domain = 0;
  bool operator==(const Seat&) const = default;
};

// The ranks of one domain, node by node: nodes ordered by their lowest rank, then ranks in order.
struct DomainSeats {
  uint32_t domain = 0;
  std::vector<Rank> ranks;
};

// Domains, ordered by their lowest rank. std::nullopt if a node is in two domains or there is no rank; `why` then says
// so. Only the order of ranks matters, never the ids of nodes and domains: a node that takes over the ranks of a lost
// one changes nothing.
std::optional<std::vector<DomainSeats>> seats_by_domain(const std::vector<Seat>& seats, std::string* why);

// "2 nodes", or "4 nodes in 2 failure domains" where that differs. For reasons.
std::string describe_seats(const std::vector<Seat>& seats);

}  // namespace keepstep::brain
