#include "brain/copies/copy_placement.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "brain/copies/placement_testing.h"

namespace keepstep::brain {
namespace {

std::vector<uint64_t> loads_of(const CopyPlacement& placement) {
  std::vector<uint64_t> loads(placement.keepers.size(), 0);
  for (const std::vector<Rank>& keepers : placement.keepers) {
    for (const Rank keeper : keepers) {
      ++loads.at(keeper);
    }
  }
  return loads;
}

void expect_apart(const std::vector<Seat>& seats, uint32_t copies, const CopyPlacement& placement) {
  ASSERT_EQ(placement.keepers.size(), seats.size());
  for (Rank rank = 0; rank < seats.size(); ++rank) {
    std::set<uint32_t> domains = {seats[rank].domain};
    for (const Rank keeper : placement.keepers[rank]) {
      domains.insert(seats.at(keeper).domain);
    }
    ASSERT_EQ(placement.keepers[rank].size(), copies - 1);
    ASSERT_EQ(domains.size(), copies) << "two copies of rank " << rank << " would be lost at once";
  }
}

std::string refusal(const std::vector<Seat>& seats, uint32_t copies) {
  std::string why;
  EXPECT_FALSE(place_copies(seats, copies, &why).has_value());
  return why;
}

TEST(CopyPlacement, the_second_copy_of_a_rank_is_on_the_next_node_with_the_same_local_rank) {
  const auto placement = place_copies(even_topology(3, 2), 2);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->keepers, (std::vector<std::vector<Rank>>{{2}, {3}, {4}, {5}, {0}, {1}}));
}

TEST(CopyPlacement, one_copy_is_the_own_nodes) {
  const auto placement = place_copies(even_topology(1, 4), 1);
  ASSERT_TRUE(placement.has_value());
  EXPECT_EQ(placement->keepers, std::vector<std::vector<Rank>>(4));
}

TEST(CopyPlacement, no_two_copies_are_in_one_domain_and_everyone_keeps_the_same_unless_a_domain_is_too_large) {
  std::mt19937_64 random(3);
  int possible = 0;
  int with_large = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + " of seed 3");
    const std::vector<Seat> seats = random_topology(random, 12, 6);
    const auto domains = ranks_by_domain(seats);
    const auto copies = static_cast<uint32_t>(1 + random() % 4);
    const auto placement = place_copies(seats, copies);
    ASSERT_EQ(placement.has_value(), domains.size() >= copies);
    if (!placement.has_value()) {
      continue;
    }
    ++possible;
    expect_apart(seats, copies, *placement);
    const std::vector<uint64_t> loads = loads_of(*placement);
    std::vector<uint64_t> of_others;
    for (const auto& [domain, ranks] : domains) {
      std::vector<uint64_t> inside;
      for (const Rank rank : ranks) {
        inside.push_back(loads[rank]);
      }
      EXPECT_LE(spread(inside), 1u) << "within domain " << domain;
      const uint64_t sum = std::accumulate(inside.begin(), inside.end(), uint64_t{0});
      EXPECT_LE(sum, seats.size() - ranks.size()) << "one copy of each rank outside at most";
      if (sum < seats.size() - ranks.size()) {  // otherwise it keeps all it can
        of_others.insert(of_others.end(), inside.begin(), inside.end());
      }
    }
    if (!of_others.empty()) {
      EXPECT_LE(spread(of_others), 1u);
    }
    const bool large = std::any_of(domains.begin(), domains.end(),
                                   [&](const auto& domain) { return domain.second.size() * copies > seats.size(); });
    with_large += large ? 1 : 0;
    if (!large) {
      EXPECT_EQ(spread(loads), 0u);
    }
  }
  EXPECT_GT(possible, 1000);
  EXPECT_GT(with_large, 200);
}

// Tries every possible placement of a few ranks: the loads of the best one, highest first.
std::vector<uint64_t> best_loads(const std::vector<Seat>& seats, uint32_t copies) {
  std::vector<uint64_t> loads(seats.size(), 0);
  std::vector<uint64_t> best;
  std::function<void(Rank, Rank, std::set<uint32_t>)> place = [&](Rank rank, Rank from, std::set<uint32_t> used) {
    if (rank == seats.size()) {
      std::vector<uint64_t> sorted = loads;
      std::sort(sorted.rbegin(), sorted.rend());
      best = best.empty() ? sorted : std::min(best, sorted);
      return;
    }
    if (used.size() == copies) {
      return place(rank + 1, 0,
                   rank + 1 < seats.size() ? std::set<uint32_t>{seats[rank + 1].domain} : std::set<uint32_t>{});
    }
    for (Rank keeper = from; keeper < seats.size(); ++keeper) {
      if (!used.contains(seats[keeper].domain)) {
        std::set<uint32_t> more = used;
        more.insert(seats[keeper].domain);
        ++loads[keeper];
        place(rank, keeper + 1, more);
        --loads[keeper];
      }
    }
  };
  place(0, 0, {seats[0].domain});
  return best;
}

TEST(CopyPlacement, no_other_placement_is_more_even) {
  const std::vector<std::vector<uint32_t>> cases = {{1, 1},    {3, 1},       {1, 4},       {2, 2, 2}, {4, 1, 1},
                                                    {3, 2, 1}, {2, 1, 1, 1}, {3, 1, 1, 1}, {1, 1, 3}, {1, 2, 1, 1}};
  for (const std::vector<uint32_t>& ranks_of : cases) {
    const std::vector<Seat> seats = topology(ranks_of);
    for (uint32_t copies = 2; copies <= std::min<size_t>(3, ranks_of.size()); ++copies) {
      SCOPED_TRACE(testing::Message() << testing::PrintToString(ranks_of) << " copies=" << copies);
      const auto placement = place_copies(seats, copies);
      ASSERT_TRUE(placement.has_value());
      expect_apart(seats, copies, *placement);
      std::vector<uint64_t> loads = loads_of(*placement);
      std::sort(loads.rbegin(), loads.rend());
      EXPECT_EQ(loads, best_loads(seats, copies));
    }
  }
}

TEST(CopyPlacement, a_node_that_takes_the_ranks_of_a_lost_one_changes_nothing) {
  std::vector<Seat> seats = even_topology(16, 8);
  const auto before = place_copies(seats, 3);
  for (Seat& seat : seats) {
    if (seat.node == 5) {
      seat = {99, 99};
    }
  }
  EXPECT_EQ(place_copies(seats, 3), before);
}

TEST(CopyPlacement, a_node_that_joins_at_the_end_changes_only_what_went_round_to_the_first_ones) {
  const auto before = place_copies(even_topology(16, 8), 3);
  const auto after = place_copies(even_topology(17, 8), 3);
  for (Rank rank = 0; rank < 14 * 8; ++rank) {
    EXPECT_EQ(before->keepers[rank], after->keepers[rank]);
  }
}

TEST(CopyPlacement, says_why_it_cannot_be_and_what_can) {
  EXPECT_EQ(refusal(even_topology(2, 4), 3),
            "copies=3 needs 3 nodes that do not fail together; the job has 2 nodes: copies=2 is possible");
  EXPECT_EQ(refusal(even_topology(4, 4, 2), 3),
            "copies=3 needs 3 nodes that do not fail together; the job has 4 nodes in 2 failure domains: copies=2 is "
            "possible");
  EXPECT_EQ(refusal(even_topology(1, 4), 2),
            "copies=2 needs 2 nodes that do not fail together; the job has 1 node: copies=1 is possible");
  EXPECT_EQ(refusal(even_topology(2, 4), 0),
            "copies=0 protects nothing: use 1 for a copy on the rank's own node, 2 for one more on another node");
  EXPECT_EQ(refusal({}, 2), "there is no rank to protect");
  EXPECT_EQ(refusal({{7, 1}, {8, 2}, {7, 2}}, 2),
            "node 7 is in failure domain 1 and, by its rank 2, in 2: a node has one");
}

TEST(CopyPlacement, sixteen_thousand_ranks_are_placed_in_no_time) {
  int placed = 0;
  for (const std::vector<Seat>& seats :
       {even_topology(16384, 1), even_topology(2048, 8), even_topology(2048, 8, 16), even_topology(8, 2048)}) {
    for (const uint32_t copies : {2U, 3U, 4U}) {
      const auto placement = place_copies(seats, copies);
      ASSERT_TRUE(placement.has_value());
      expect_apart(seats, copies, *placement);
      EXPECT_EQ(spread(loads_of(*placement)), 0u);
      ++placed;
    }
  }
  std::mt19937_64 random(5);
  for (int round = 0; round < 5; ++round) {
    const std::vector<Seat> seats = random_topology(random, 4096, 8);
    if (const auto placement = place_copies(seats, 3); placement.has_value()) {
      expect_apart(seats, 3, *placement);
      ++placed;
    }
  }
  EXPECT_GT(placed, 12);
}

}  // namespace
}  // namespace keepstep::brain
