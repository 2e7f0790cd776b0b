#include "comm/collectives/canonical_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "comm/collectives/canonical_testing.h"

namespace keepstep::comm {
namespace {

using testing::HasSubstr;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat64, DataType::kBFloat16, DataType::kFloat16};

TEST(CanonicalSum, leaves_that_come_one_by_one_become_the_sums_of_the_runs_maximal_subtrees) {
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  for (const DataType type : kTypes) {
    for (const uint32_t leaves : {1U, 2U, 7U, 8U, 24U}) {
      const auto values = random_leaves(random, type, leaves, 700, 30);
      for (uint32_t begin = 0; begin <= leaves; ++begin) {
        for (uint32_t end = begin; end <= leaves; ++end) {
          const LeafRun run{leaves, begin, end};
          const CanonicalSum sum = sum_of(run, values, type);
          const auto subtrees = maximal_subtrees(run);
          const auto partials = sum.partials();
          ASSERT_EQ(partials.size(), subtrees.size());
          for (size_t p = 0; p < partials.size(); ++p) {
            const Leaf expected = reference_sum(values, type, sum_type(type), subtrees[p].begin, subtrees[p].end, 0);
            ASSERT_EQ(std::memcmp(partials[p], expected.data(), expected.size()), 0)
                << name(type) << " " << leaves << " leaves, [" << subtrees[p].begin << ", " << subtrees[p].end << ")";
          }
        }
      }
    }
  }
}

TEST(CanonicalSum, a_leaf_may_come_in_pieces_and_in_any_order_of_its_elements) {
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  constexpr size_t kCount = 5000;
  const auto values = random_leaves(random, DataType::kFloat32, 12, kCount, 20);
  const LeafRun run{12, 3, 12};
  const CanonicalSum whole = sum_of(run, values, DataType::kFloat32);
  CanonicalSum pieces(kCount, DataType::kFloat32);
  ASSERT_TRUE(pieces.begin(run).ok());
  for (uint32_t leaf = run.begin; leaf < run.end; ++leaf) {
    std::vector<size_t> cuts{0, kCount, random() % kCount, random() % kCount, random() % kCount};
    std::sort(cuts.begin(), cuts.end());
    std::vector<size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t piece : order) {
      EXPECT_EQ(pieces.next_leaf(), leaf);
      ASSERT_TRUE(pieces.add(cuts[piece], values[leaf].data() + cuts[piece] * 4, cuts[piece + 1] - cuts[piece]).ok());
    }
  }
  ASSERT_TRUE(pieces.complete());
  for (size_t p = 0; p < whole.partials().size(); ++p) {
    EXPECT_EQ(std::memcmp(pieces.partials()[p], whole.partials()[p], kCount * 4), 0);
  }
}

TEST(CanonicalSum, null_is_a_leaf_of_zeros) {
  for (uint32_t leaves : {1U, 4U, 5U}) {
    std::vector<Leaf> values(leaves, Leaf(16));
    for (size_t i = 0; i < 4; ++i) {
      put(values[0].data(), DataType::kFloat32, i, -0.0);  // -0 + 0 is 0: a leaf of zeros is added, not left out
    }
    CanonicalSum sum(4, DataType::kFloat32);
    ASSERT_TRUE(sum.begin({leaves, 0, leaves}).ok());
    for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
      ASSERT_TRUE(sum.add(0, leaf == 0 ? values[0].data() : nullptr, 4).ok());
    }
    const Leaf expected = reference_sum(values, DataType::kFloat32, DataType::kFloat32, 0, leaves, 0);
    EXPECT_EQ(std::memcmp(sum.partials()[0], expected.data(), 16), 0) << leaves;
  }
}

#ifdef __SSE__
TEST(CanonicalSum, the_callers_floating_point_mode_changes_nothing) {
  std::vector<Leaf> values(2, Leaf(4));
  put(values[0].data(), DataType::kFloat32, 0, 0x1p-140);  // denormal
  put(values[1].data(), DataType::kFloat32, 0, 0x1p-141);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero: torch.set_flush_denormal(True)
  const CanonicalSum sum = sum_of({2, 0, 2}, values, DataType::kFloat32);
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040U) << "the mode is the caller's own again";
  _mm_setcsr(before);
  EXPECT_EQ(element(static_cast<const std::byte*>(sum.partials()[0]), DataType::kFloat32, 0), 0x1.8p-140);
}
#endif

TEST(CanonicalSum, memory_grows_with_the_logarithm_of_the_leaves_and_is_kept) {
  for (const uint32_t leaves : {1U, 16U, 96U, 1000U}) {
    const std::vector<Leaf> values(1, Leaf(400));
    CanonicalSum sum(100, DataType::kFloat32);
    size_t bytes = 0;
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE(sum.begin({leaves, 0, leaves}).ok());
      for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
        ASSERT_TRUE(sum.add(0, values[0].data(), 100).ok());
      }
      EXPECT_LE(sum.bytes(), std::bit_width(leaves) * size_t{400}) << leaves;
      EXPECT_TRUE(step == 0 || bytes == sum.bytes());
      bytes = sum.bytes();
    }
  }
}

TEST(CanonicalSum, vectors_without_elements_have_leaves_too) {
  CanonicalSum sum(0, DataType::kFloat64);
  ASSERT_TRUE(sum.begin({3, 1, 3}).ok());
  EXPECT_TRUE(sum.add(0, nullptr, 0).ok());
  EXPECT_FALSE(sum.complete());
  EXPECT_TRUE(sum.add(0, nullptr, 0).ok());
  EXPECT_TRUE(sum.complete());
  EXPECT_EQ(sum.partials().size(), 2U);
}

TEST(CanonicalSum, mistakes_are_told_and_add_nothing) {
  const std::vector<float> ones(8, 1.0F);
  CanonicalSum sum(8, DataType::kFloat32);
  EXPECT_THAT(std::string(sum.begin({4, 2, 5}).message()), HasSubstr("[2, 5)"));
  ASSERT_TRUE(sum.begin({4, 2, 3}).ok());
  EXPECT_THAT(std::string(sum.add(4, ones.data(), 5).message()), HasSubstr("elements [4, 9) of a leaf of 8"));
  ASSERT_TRUE(sum.add(0, ones.data(), 6).ok());
  EXPECT_THAT(std::string(sum.add(5, ones.data(), 3).message()), HasSubstr("leaf 2: 1 elements more"));
  ASSERT_TRUE(sum.add(6, ones.data(), 2).ok());
  EXPECT_THAT(std::string(sum.add(0, ones.data(), 8).message()), HasSubstr("[2, 3) of 4 are all added already"));
  EXPECT_EQ(std::memcmp(sum.partials()[0], ones.data(), 32), 0);
}

TEST(CanonicalSum, of_all_leaves_is_the_whole_sum) {
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  for (const DataType type : kTypes) {
    const auto values = random_leaves(random, type, 7, 900, 10);
    const CanonicalSum sum = sum_of({7, 0, 7}, values, type);
    Leaf result(values[0].size());
    ASSERT_TRUE(sum.write(result.data(), 7).ok());
    EXPECT_TRUE(result == reference_sum(values, type, type, 0, 7, 7)) << name(type);
  }
  CanonicalSum sum(1, DataType::kFloat32);
  float value = 1.0F;
  EXPECT_THAT(std::string(sum.write(&value, 0).message()), HasSubstr("[0, 0) of 0"));
  ASSERT_TRUE(sum.begin({3, 1, 3}).ok());
  ASSERT_TRUE(sum.add(0, &value, 1).ok());
  EXPECT_THAT(std::string(sum.write(&value, 0).message()), HasSubstr("leaves [1, 2) of 3 are not the whole sum"));
}

TEST(AddInTreeOrder, adds_divides_and_rounds_once) {
  SCOPED_TRACE(repeat_with());
  std::mt19937_64 random(test_seed());
  for (const DataType type : kTypes) {
    const auto values = random_leaves(random, type, 13, 1500, 20);
    const CanonicalSum first = sum_of({13, 0, 6}, values, type);
    const CanonicalSum second = sum_of({13, 6, 13}, values, type);
    std::vector<PartialSum> parts;
    for (const CanonicalSum* sum : {&first, &second}) {
      const auto subtrees = maximal_subtrees(sum->run());
      for (size_t p = 0; p < subtrees.size(); ++p) {
        parts.push_back({subtrees[p], static_cast<const std::byte*>(sum->partials()[p])});
      }
    }
    for (const uint64_t divisor : {0, 1, 13, 12345}) {
      Leaf result(values[0].size());
      add_in_tree_order(result.data(), type, parts, 13, 1500, divisor);
      EXPECT_TRUE(result == reference_sum(values, type, type, 0, 13, divisor)) << name(type) << " / " << divisor;
    }
  }
}

TEST(AddInTreeOrder, only_floating_point_has_an_order_worth_keeping) {
  for (const DataType type : kTypes) {
    EXPECT_EQ(why_no_sum(type), "");
  }
  EXPECT_THAT(why_no_sum(DataType::kInt32), HasSubstr("not for int32"));
  EXPECT_EQ(sum_type(DataType::kBFloat16), DataType::kFloat32);
  EXPECT_EQ(sum_type(DataType::kFloat64), DataType::kFloat64);
}

}  // namespace
}  // namespace keepstep::comm
