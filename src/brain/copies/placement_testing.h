// Topologies for the placement tests. Test code only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "brain/copies/seats.h"

namespace keepstep::brain {

// `ranks_of[n]` ranks on node n, whose domain is n / nodes_per_domain.
inline std::vector<Seat> topology(const std::vector<uint32_t>& ranks_of, uint32_t nodes_per_domain = 1) {
  std::vector<Seat> seats;
  for (NodeId node = 0; node < ranks_of.size(); ++node) {
    seats.insert(seats.end(), ranks_of[node], Seat{node, node / nodes_per_domain});
  }
  return seats;
}
inline std::vector<Seat> even_topology(uint32_t nodes, uint32_t ranks_each, uint32_t nodes_per_domain = 1) {
  return topology(std::vector<uint32_t>(nodes, ranks_each), nodes_per_domain);
}

// Nodes of a few sizes, or one much larger; domains of a few nodes; ranks in any order; ids of any size.
inline std::vector<Seat> random_topology(std::mt19937_64& random, uint64_t max_nodes, uint64_t max_ranks_each) {
  const uint64_t nodes = 1 + random() % max_nodes;
  const bool even = random() % 2 == 0;
  const uint64_t each = 1 + random() % max_ranks_each;
  const uint64_t domains = random() % 2 == 0 ? nodes : 1 + random() % nodes;
  std::vector<Seat> seats;
  for (uint64_t node = 0; node < nodes; ++node) {
    const uint64_t ranks = even ? each : random() % 10 == 0 ? 1 + random() % (4 * each) : 1 + random() % each;
    const auto domain = static_cast<uint32_t>(domains == nodes ? node : random() % domains);
    seats.insert(seats.end(), ranks, Seat{static_cast<NodeId>(1000 - node % 7 + 10 * node), 5 + domain});
  }
  if (random() % 3 == 0) {
    std::shuffle(seats.begin(), seats.end(), random);
  }
  return seats;
}

inline std::map<uint32_t, std::vector<Rank>> ranks_by_domain(const std::vector<Seat>& seats) {
  std::map<uint32_t, std::vector<Rank>> ranks;
  for (Rank rank = 0; rank < seats.size(); ++rank) {
    ranks[seats[rank].domain].push_back(rank);
  }
  return ranks;
}

inline uint64_t spread(const std::vector<uint64_t>& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return *most - *least;
}

}  // namespace keepstep::brain
