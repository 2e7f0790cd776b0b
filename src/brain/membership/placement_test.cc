#include "brain/membership/placement.h"

#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

using Unit = Placement::Unit;

// Two places on each of three nodes; ranks 0 and 1 on node 7, 2 and 3 on node 2, 4 and 5 on node 3.
Placement three_nodes() {
  Placement placement;
  WorkerId worker = 20;
  for (const NodeId node : {7, 2, 3}) {
    for (uint32_t local = 0; local < 2; ++local) {
      placement.add(node, local);
      placement.give(placement.world() - 1, worker++, Placement::Origin::kStart, true);
    }
  }
  return placement;
}

TEST(Placement, ranks_of_a_lost_node_move_together) {
  Placement placement = three_nodes();
  placement.unassign(2);
  EXPECT_EQ(placement.unassigned(), (std::set<Rank>{2, 3}));
  EXPECT_EQ(placement.move(2, 9), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(placement.unassigned().empty());
  EXPECT_EQ(placement.nodes(), (std::set<NodeId>{3, 7, 9}));
  EXPECT_EQ(placement.at(3).node, 9u);
}

TEST(Placement, a_rank_is_waited_for_until_its_worker_parks_and_empty_when_that_is_gone) {
  Placement placement = three_nodes();
  placement.take_back(4, 99);
  EXPECT_TRUE(placement.empty().empty()) << "somebody else holds it";
  placement.take_back(4, 24);
  EXPECT_EQ(placement.empty(), std::set<Rank>{4});
  placement.give(4, 30, Placement::Origin::kZygote, false);
  EXPECT_TRUE(placement.empty().empty());
  EXPECT_TRUE(placement.waits_for_workers());
  placement.parked(4);
  EXPECT_FALSE(placement.waits_for_workers());
}

TEST(Placement, who_formed_last_tells_newcomers_from_survivors) {
  Placement placement = three_nodes();
  EXPECT_TRUE(placement.newcomer(0));
  placement.form({{0, 20, 7}, {1, 21, 7}});
  EXPECT_FALSE(placement.newcomer(0));
  EXPECT_TRUE(placement.newcomer(2));
  placement.take_back(0, 20);
  placement.give(0, 31, Placement::Origin::kSpare, true);
  EXPECT_TRUE(placement.newcomer(0));
  EXPECT_EQ(placement.at(0).formed_holder, 20u);
}

TEST(Placement, members_are_chosen_first_and_always_one_of_the_node_of_rank_0) {
  const Placement placement = three_nodes();
  std::vector<Unit> all = {{.node = 2, .group = 0, .member = true, .whole = true, .formed = true},
                           {.node = 3, .group = 0, .ready = true},
                           {.node = 7, .group = 0, .member = true},
                           {.node = 9, .group = 0, .ready = true, .leaving = true},
                           {.node = 9, .group = 1}};
  const auto nodes = [&](size_t most) {
    std::vector<NodeId> chosen;
    for (const Unit& unit : placement.choose(all, most)) {
      chosen.push_back(unit.node);
    }
    return chosen;
  };
  EXPECT_EQ(nodes(1), std::vector<NodeId>{7});
  EXPECT_EQ(nodes(2), (std::vector<NodeId>{7, 2}));
  EXPECT_EQ(nodes(9), (std::vector<NodeId>{7, 2, 3}));
}

TEST(Placement, state_is_dealt_anew_where_a_place_has_another_rank_or_the_world_another_size) {
  const Placement placement = three_nodes();
  std::vector<Placement::Slot> slots = placement.slots();
  EXPECT_FALSE(placement.reshards(slots));
  slots[5].node = 8;  // another place for the rank: nobody there has another rank
  EXPECT_FALSE(placement.reshards(slots));
  std::swap(slots[0], slots[1]);
  EXPECT_TRUE(placement.reshards(slots));
  slots.pop_back();
  EXPECT_TRUE(placement.reshards(slots));
}

}  // namespace
}  // namespace keepstep::brain
