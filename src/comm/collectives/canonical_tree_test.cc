#include "comm/collectives/canonical_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

namespace keepstep::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The definition, word for word.
void nodes(uint32_t begin, uint32_t end, std::set<std::pair<uint32_t, uint32_t>>& result) {
  result.emplace(begin, end);
  if (end - begin > 1) {
    uint32_t left = 1;
    while (left * 2 < end - begin) {
      left *= 2;
    }
    nodes(begin, begin + left, result);
    nodes(begin + left, end, result);
  }
}

TEST(CanonicalTree, maximal_subtrees_of_every_run_are_nodes_of_the_tree_and_as_few_as_can_be) {
  for (uint32_t leaves = 1; leaves <= 70; ++leaves) {
    std::set<std::pair<uint32_t, uint32_t>> tree;
    nodes(0, leaves, tree);
    for (uint32_t begin = 0; begin <= leaves; ++begin) {
      for (uint32_t end = begin; end <= leaves; ++end) {
        // Greedy from the definition: at each leaf the largest node that fits.
        std::vector<Subtree> expected;
        for (uint32_t at = begin; at < end;) {
          uint32_t next = end;
          while (!tree.contains({at, next})) {
            --next;
          }
          expected.push_back({at, next});
          at = next;
        }
        const LeafRun run{leaves, begin, end};
        ASSERT_EQ(maximal_subtrees(run), expected) << leaves << " leaves, [" << begin << ", " << end << ")";
        ASSERT_EQ(count_maximal_subtrees(run), expected.size());
        ASSERT_LE(expected.size(), max_subtree_count(leaves)) << leaves;
      }
    }
  }
}

TEST(CanonicalTree, known_runs) {
  EXPECT_THAT(maximal_subtrees({16, 0, 16}), ElementsAre(Subtree{0, 16}));
  EXPECT_THAT(maximal_subtrees({16, 6, 11}), ElementsAre(Subtree{6, 8}, Subtree{8, 10}, Subtree{10, 11}));
  EXPECT_THAT(maximal_subtrees({7, 4, 7}), ElementsAre(Subtree{4, 7}));  // the right edge
  EXPECT_THAT(maximal_subtrees({8, 4, 7}), ElementsAre(Subtree{4, 6}, Subtree{6, 7}));
  EXPECT_THAT(maximal_subtrees({8, 3, 3}), IsEmpty());
}

TEST(CanonicalTree, adding_leaf_by_leaf_builds_the_nodes_of_the_tree_and_ends_with_the_maximal_ones) {
  for (uint32_t leaves : {1U, 2U, 3U, 7U, 8U, 12U, 24U, 33U, 96U}) {
    std::set<std::pair<uint32_t, uint32_t>> tree;
    nodes(0, leaves, tree);
    for (uint32_t begin = 0; begin < leaves; ++begin) {
      std::vector<Subtree> stack;
      for (uint32_t leaf = begin; leaf < leaves; ++leaf) {
        Subtree sum{leaf, leaf + 1};
        for (size_t additions = additions_after(leaves, begin, sum); additions > 0; --additions) {
          ASSERT_FALSE(stack.empty());
          ASSERT_EQ(stack.back().end, sum.begin);
          const uint32_t size = sum.end - stack.back().begin;
          ASSERT_EQ(sum.begin - stack.back().begin, std::bit_floor(size - 1)) << "not the tree's own bracket";
          sum.begin = stack.back().begin;
          stack.pop_back();
          ASSERT_TRUE(tree.contains({sum.begin, sum.end})) << leaves << " " << sum.begin << " " << sum.end;
        }
        stack.push_back(sum);
        ASSERT_EQ(stack, maximal_subtrees({leaves, begin, leaf + 1}));
      }
    }
  }
}

TEST(CanonicalTree, even_runs_share_all_leaves_in_order) {
  for (uint32_t leaves = 1; leaves <= 40; ++leaves) {
    for (size_t members = 1; members <= 20; ++members) {
      uint32_t at = 0;
      uint32_t least = leaves;
      uint32_t most = 0;
      for (size_t member = 0; member < members; ++member) {
        const LeafRun run = even_run(leaves, member, members);
        ASSERT_EQ(run.begin, at);
        ASSERT_EQ(why_not(run), "");
        at = run.end;
        least = std::min(least, run.end - run.begin);
        most = std::max(most, run.end - run.begin);
      }
      ASSERT_EQ(at, leaves);
      ASSERT_LE(most - least, 1U);
    }
  }
}

TEST(CanonicalTree, what_is_no_run_is_told) {
  EXPECT_THAT(why_not(LeafRun{0, 0, 0}), HasSubstr("not 0"));
  EXPECT_THAT(why_not(LeafRun{kMaxLeaves + 1, 0, 1}), HasSubstr("16777216"));
  EXPECT_THAT(why_not(LeafRun{8, 5, 4}), HasSubstr("[5, 4) is no run of leaves of a tree over 8"));
  EXPECT_THAT(why_not(LeafRun{8, 5, 9}), HasSubstr("[5, 9)"));
  EXPECT_EQ(why_not(LeafRun{8, 8, 8}), "");
}

}  // namespace
}  // namespace keepstep::comm
