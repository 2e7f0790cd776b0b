#include "rank/vote/node_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace keepstep::rank {
namespace {

using brain::Rank;
using Ranks = std::vector<Rank>;

TEST(NodeTreeTest, one_node_is_a_root_without_anybody_below) {
  const NodeTree tree({7, 7, 7}, 0);
  EXPECT_TRUE(tree.leads);
  EXPECT_TRUE(tree.root);
  EXPECT_TRUE(tree.below.empty());
  EXPECT_EQ(tree.ranks, (Ranks{0, 1, 2}));
  EXPECT_FALSE(NodeTree({7, 7, 7}, 1).leads);
}

TEST(NodeTreeTest, nodes_whose_ranks_are_mixed_are_led_by_their_lowest) {
  const std::vector<uint32_t> nodes = {5, 2, 2, 5, 9};
  const NodeTree root(nodes, 0);
  ASSERT_EQ(root.below.size(), 2u);
  EXPECT_EQ(root.below[0].leader, 1u);
  EXPECT_EQ(root.below[0].ranks, (Ranks{1, 2}));
  EXPECT_EQ(root.below[1].leader, 4u);
  EXPECT_EQ(root.ranks, (Ranks{0, 1, 2, 3, 4}));
  const NodeTree second(nodes, 1);
  EXPECT_TRUE(second.leads);
  EXPECT_FALSE(second.root);
  EXPECT_EQ(second.above, 0u);
  EXPECT_FALSE(NodeTree(nodes, 2).leads);
  EXPECT_FALSE(NodeTree(nodes, 3).leads);
}

// For any number of nodes: both sides agree on who is below whom, and the root speaks for all.
TEST(NodeTreeTest, all_leaders_see_the_same_tree) {
  for (uint32_t count = 1; count <= 40; ++count) {
    std::vector<uint32_t> nodes;
    for (uint32_t rank = 0; rank < 2 * count; ++rank) {
      nodes.push_back((rank * 41) % count);
    }
    Ranks everyone(nodes.size());
    std::iota(everyone.begin(), everyone.end(), 0);
    size_t leaders = 0;
    std::set<Rank> reached;
    for (const Rank rank : everyone) {
      const NodeTree tree(nodes, rank);
      leaders += tree.leads ? 1 : 0;
      if (!tree.leads) {
        continue;
      }
      EXPECT_EQ(tree.root, rank == 0);
      if (tree.root) {
        EXPECT_EQ(tree.ranks, everyone) << count << " nodes";
      }
      EXPECT_LE(tree.below.size(), NodeTree::kFanOut);
      Ranks all = tree.ranks;
      for (const NodeTree::Branch& branch : tree.below) {
        const NodeTree child(nodes, branch.leader);
        EXPECT_TRUE(child.leads);
        EXPECT_EQ(child.above, rank);
        EXPECT_EQ(child.ranks, branch.ranks);
        EXPECT_TRUE(std::includes(all.begin(), all.end(), branch.ranks.begin(), branch.ranks.end()));
        EXPECT_TRUE(reached.insert(branch.leader).second) << "rank " << branch.leader << " has two above";
      }
    }
    EXPECT_EQ(leaders, count);
    EXPECT_EQ(reached.size(), count - 1);
  }
}

}  // namespace
}  // namespace keepstep::rank
