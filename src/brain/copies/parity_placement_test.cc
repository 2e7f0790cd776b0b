#include "brain/copies/parity_placement.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "brain/copies/placement_testing.h"

namespace keepstep::brain {
namespace {

void expect_sound(const std::vector<Seat>& seats, uint32_t data, uint32_t parity, const ParityPlacement& placement) {
  std::vector<int> times(seats.size(), 0);
  ASSERT_EQ(placement.group_of.size(), seats.size());
  for (size_t number = 0; number < placement.groups.size(); ++number) {
    const ParityGroup& group = placement.groups[number];
    ASSERT_GE(group.members.size(), 1u);
    ASSERT_LE(group.members.size(), data);
    ASSERT_EQ(group.keepers.size(), parity);
    std::set<uint32_t> domains;
    for (const Rank rank : group.members) {
      domains.insert(seats.at(rank).domain);
      ++times[rank];
      ASSERT_EQ(placement.group_of[rank], number);
    }
    for (const Rank rank : group.keepers) {
      domains.insert(seats.at(rank).domain);
    }
    ASSERT_EQ(domains.size(), group.members.size() + parity) << "group " << number << " has two blocks in one domain";
  }
  ASSERT_EQ(std::count(times.begin(), times.end(), 1), static_cast<long>(seats.size()));
}

std::vector<uint64_t> parity_loads(const std::vector<Seat>& seats, const ParityPlacement& placement,
                                   const std::function<size_t(Rank)>& place, size_t places) {
  std::vector<uint64_t> loads(places, 0);
  for (const ParityGroup& group : placement.groups) {
    for (const Rank rank : group.keepers) {
      EXPECT_LT(rank, seats.size());
      ++loads.at(place(rank));
    }
  }
  return loads;
}
std::vector<uint64_t> loads_of_nodes(const std::vector<Seat>& seats, const ParityPlacement& placement, size_t nodes) {
  return parity_loads(seats, placement, [&](Rank rank) { return seats[rank].node; }, nodes);
}

std::string refusal(const std::vector<Seat>& seats, uint32_t data, uint32_t parity) {
  std::string why;
  EXPECT_FALSE(place_parity(seats, data, parity, &why).has_value());
  return why;
}

TEST(ParityPlacement, eight_nodes_of_one_rank_with_six_and_two_are_two_groups_of_four) {
  const auto placement = place_parity(even_topology(8, 1), 6, 2);
  ASSERT_TRUE(placement.has_value());
  ASSERT_EQ(placement->groups.size(), 2u);
  EXPECT_EQ(placement->groups[0].members, (std::vector<Rank>{0, 2, 4, 6}));
  EXPECT_EQ(placement->groups[1].members, (std::vector<Rank>{1, 3, 5, 7}));
  expect_sound(even_topology(8, 1), 6, 2, *placement);
}

TEST(ParityPlacement, equal_nodes_keep_the_same_number_of_blocks_to_within_one_and_groups_are_full) {
  for (const uint32_t nodes : {6U, 8U, 9U, 12U, 17U, 24U, 31U, 64U}) {
    for (const uint32_t each : {1U, 2U, 3U, 4U, 6U, 8U}) {
      for (const auto& [data, parity] : std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {4, 2}, {6, 2}, {8, 3}}) {
        if (nodes < data + parity) {
          continue;
        }
        SCOPED_TRACE(testing::Message() << nodes << " nodes of " << each << " ranks, " << data << "+" << parity);
        const std::vector<Seat> seats = even_topology(nodes, each);
        const auto placement = place_parity(seats, data, parity);
        ASSERT_TRUE(placement.has_value());
        expect_sound(seats, data, parity, *placement);
        EXPECT_LE(spread(loads_of_nodes(seats, *placement, nodes)), 1u);
        EXPECT_LE(placement->groups.size(), seats.size() / data + 1) << "no more parity than must be";
      }
    }
  }
}

TEST(ParityPlacement, whatever_the_topology_no_two_blocks_of_a_group_are_in_one_domain) {
  std::mt19937_64 random(4);
  int possible = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 4");
    const std::vector<Seat> seats = random_topology(random, 24, 6);
    const auto data = static_cast<uint32_t>(1 + random() % 7);
    const auto parity = static_cast<uint32_t>(1 + random() % 3);
    const auto placement = place_parity(seats, data, parity);
    const auto domains = ranks_by_domain(seats);
    ASSERT_EQ(placement.has_value(), domains.size() >= data + parity);
    if (placement.has_value()) {
      ++possible;
      expect_sound(seats, data, parity, *placement);
      const std::vector<uint64_t> loads = parity_loads(seats, *placement, [](Rank rank) { return rank; }, seats.size());
      for (const auto& [domain, ranks] : domains) {
        std::vector<uint64_t> inside;
        for (const Rank rank : ranks) {
          inside.push_back(loads[rank]);
        }
        EXPECT_LE(spread(inside), 1u) << "within domain " << domain;
      }
    }
  }
  EXPECT_GT(possible, 1000);
}

// The lowest sum over domains of load * load / ranks, over all ways to choose the keepers of these groups.
double least_cost(const std::vector<Seat>& seats, const ParityPlacement& placement) {
  const auto domains = ranks_by_domain(seats);
  std::map<uint32_t, double> loads;
  double best = std::numeric_limits<double>::infinity();
  const auto cost = [&] {
    double sum = 0;
    for (const auto& [domain, load] : loads) {
      sum += load * load / static_cast<double>(domains.at(domain).size());
    }
    return sum;
  };
  std::function<void(size_t, size_t, uint32_t)> choose = [&](size_t group, size_t block, uint32_t from) {
    if (group == placement.groups.size()) {
      best = std::min(best, cost());
      return;
    }
    if (block == placement.groups[group].keepers.size()) {
      return choose(group + 1, 0, 0);
    }
    for (const auto& [domain, ranks] : domains) {
      const std::vector<Rank>& members = placement.groups[group].members;
      if (domain >= from &&
          std::none_of(members.begin(), members.end(), [&](Rank rank) { return seats[rank].domain == domain; })) {
        ++loads[domain];
        choose(group, block + 1, domain + 1);
        --loads[domain];
      }
    }
  };
  choose(0, 0, 0);
  return best;
}

TEST(ParityPlacement, no_other_choice_of_keepers_is_more_even) {
  std::mt19937_64 random(6);
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 6");
    std::vector<uint32_t> ranks_of(3 + random() % 4);
    for (uint32_t& ranks : ranks_of) {
      ranks = 1 + static_cast<uint32_t>(random() % 4);
    }
    const std::vector<Seat> seats = topology(ranks_of);
    const auto data = static_cast<uint32_t>(1 + random() % 3);
    const auto parity = static_cast<uint32_t>(1 + random() % 2);
    const auto placement = place_parity(seats, data, parity);
    if (!placement.has_value() || placement->groups.size() > 6 || ranks_of.size() >= 2 * (data + parity)) {
      continue;  // impossible, too many ways, or more than one set of domains
    }
    ++compared;
    const std::vector<uint64_t> loads = loads_of_nodes(seats, *placement, ranks_of.size());
    double cost = 0;
    for (size_t node = 0; node < loads.size(); ++node) {
      cost += static_cast<double>(loads[node] * loads[node]) / ranks_of[node];
    }
    EXPECT_NEAR(cost, least_cost(seats, *placement), 1e-9);
  }
  EXPECT_GT(compared, 50);
}

TEST(ParityPlacement, any_two_of_eight_nodes_may_be_lost) {
  const std::vector<Seat> seats = even_topology(8, 4);
  const auto placement = place_parity(seats, 6, 2);
  ASSERT_TRUE(placement.has_value());
  for (NodeId first = 0; first < 8; ++first) {
    for (NodeId second = first + 1; second < 8; ++second) {
      for (const ParityGroup& group : placement->groups) {
        const auto lost = [&](Rank rank) { return seats[rank].node == first || seats[rank].node == second; };
        EXPECT_LE(std::count_if(group.members.begin(), group.members.end(), lost) +
                      std::count_if(group.keepers.begin(), group.keepers.end(), lost),
                  2);
      }
    }
  }
}

TEST(ParityPlacement, a_node_that_takes_the_ranks_of_a_lost_one_changes_nothing) {
  std::vector<Seat> seats = even_topology(24, 8);
  const auto before = place_parity(seats, 6, 2);
  for (Seat& seat : seats) {
    if (seat.node == 5) {
      seat = {99, 99};
    }
  }
  EXPECT_EQ(place_parity(seats, 6, 2), before);
}

TEST(ParityPlacement, a_node_that_joins_at_the_end_changes_the_last_set_only) {
  const auto before = place_parity(even_topology(36, 8), 6, 2);
  const auto after = place_parity(even_topology(37, 8), 6, 2);
  // Nine nodes of eight ranks form twelve groups of six: three such sets stay as they are.
  for (size_t group = 0; group < 36; ++group) {
    EXPECT_EQ(before->groups[group], after->groups[group]);
  }
}

TEST(ParityPlacement, says_why_it_cannot_be_and_what_can) {
  EXPECT_EQ(refusal(even_topology(5, 4), 6, 2),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 5 nodes: parity=3+2 or copies=3 is "
            "possible");
  EXPECT_EQ(refusal(even_topology(8, 4, 2), 6, 2),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 8 nodes in 4 failure domains: "
            "parity=2+2 or copies=3 is possible");
  EXPECT_EQ(refusal(even_topology(3, 4), 6, 2),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 3 nodes: copies=3 is possible");
  EXPECT_EQ(refusal(even_topology(1, 4), 6, 2),
            "parity=6+2 needs 8 nodes that do not fail together; the job has 1 node: only copies=1 (none but its own) "
            "is possible");
  for (const auto& [data, parity] : std::vector<std::pair<uint32_t, uint32_t>>{{0, 2}, {6, 0}, {254, 2}}) {
    EXPECT_EQ(refusal(even_topology(8, 1), data, parity),
              "parity=" + std::to_string(data) + "+" + std::to_string(parity) +
                  ": K+M needs at least one block of each kind, and at most 255 in all; 6+2 outlives any two of eight "
                  "nodes");
  }
  EXPECT_EQ(refusal({}, 6, 2), "there is no rank to protect");
}

TEST(ParityPlacement, sixteen_thousand_ranks_are_placed_in_no_time) {
  int placed = 0;
  for (const std::vector<Seat>& seats :
       {even_topology(16384, 1), even_topology(2048, 8), even_topology(2048, 8, 16), even_topology(8, 2048)}) {
    for (const auto& [data, parity] : std::vector<std::pair<uint32_t, uint32_t>>{{6, 2}, {4, 2}}) {
      const auto placement = place_parity(seats, data, parity);
      ASSERT_TRUE(placement.has_value());
      expect_sound(seats, data, parity, *placement);
      ++placed;
    }
  }
  std::mt19937_64 random(5);
  for (int round = 0; round < 5; ++round) {
    const std::vector<Seat> seats = random_topology(random, 4096, 8);
    if (const auto placement = place_parity(seats, 12, 4); placement.has_value()) {
      expect_sound(seats, 12, 4, *placement);
      ++placed;
    }
  }
  EXPECT_GT(placed, 8);
}

}  // namespace
}  // namespace keepstep::brain
