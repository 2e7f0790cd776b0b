#include "brain/copies/seats.h"

#include <map>
#include <set>

namespace keepstep::brain {

std::optional<std::vector<DomainSeats>> seats_by_domain(const std::vector<Seat>& seats, std::string* why) {
  const auto refuse = [why](const std::string& reason) {
    if (why != nullptr) {
      *why = reason;
    }
    return std::nullopt;
  };
  if (seats.empty()) {
    return refuse("there is no rank to protect");
  }
  struct Node {
    uint32_t domain = 0;
    std::vector<Rank> ranks;
  };
  std::map<NodeId, Node> nodes;
  std::vector<NodeId> node_order;  // by lowest rank
  for (Rank rank = 0; rank < seats.size(); ++rank) {
    const auto [at, is_new] = nodes.try_emplace(seats[rank].node, Node{seats[rank].domain, {}});
    if (at->second.domain != seats[rank].domain) {
      return refuse("node " + std::to_string(seats[rank].node) + " is in failure domain " +
                    std::to_string(at->second.domain) + " and, by its rank " + std::to_string(rank) + ", in " +
                    std::to_string(seats[rank].domain) + ": a node has one");
    }
    at->second.ranks.push_back(rank);
    if (is_new) {
      node_order.push_back(seats[rank].node);
    }
  }
  std::vector<DomainSeats> domains;
  std::map<uint32_t, size_t> index_of;
  for (const NodeId number : node_order) {
    const Node& node = nodes.at(number);
    const auto [at, is_new] = index_of.try_emplace(node.domain, domains.size());
    if (is_new) {
      domains.push_back({node.domain, {}});
    }
    std::vector<Rank>& ranks = domains[at->second].ranks;
    ranks.insert(ranks.end(), node.ranks.begin(), node.ranks.end());
  }
  return domains;
}

std::string describe_seats(const std::vector<Seat>& seats) {
  std::set<NodeId> nodes;
  std::set<uint32_t> domains;
  for (const Seat& seat : seats) {
    nodes.insert(seat.node);
    domains.insert(seat.domain);
  }
  const auto count = [](size_t number, const std::string& what) {
    return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
  };
  return count(nodes.size(), "node") +
         (nodes.size() == domains.size() ? "" : " in " + count(domains.size(), "failure domain"));
}

}  // namespace keepstep::brain
