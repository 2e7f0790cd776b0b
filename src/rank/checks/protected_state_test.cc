#include "rank/checks/protected_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::rank {
namespace {

using ::testing::HasSubstr;

std::string message(const Status& status) { return std::string(status.message()); }

ProtectedState model(std::vector<float>& weights, double& bias, size_t rows = 2) {
  ProtectedState state;
  EXPECT_TRUE(state.add("weights", weights.data(), {rows, weights.size() / rows}, "float32", sizeof(float)).ok());
  EXPECT_TRUE(state.add("bias", &bias, {}, "float64", sizeof(double)).ok());
  return state;
}

class ProtectedStateTest : public ::testing::Test {
 protected:
  std::vector<float> weights_ = std::vector<float>(12, 1.0F);
  double bias_ = 0;
};

TEST_F(ProtectedStateTest, pieces_keep_their_order_and_size) {
  const std::vector<state::Region> regions = model(weights_, bias_).regions();
  ASSERT_EQ(regions.size(), 2);
  EXPECT_EQ(regions[0].data, weights_.data());
  EXPECT_EQ(regions[0].bytes, 48);
  EXPECT_EQ(regions[1].bytes, 8);
}

TEST_F(ProtectedStateTest, a_peer_with_the_same_pieces_is_the_same) {
  std::vector<float> others(12);
  double bias = 0;
  EXPECT_TRUE(model(weights_, bias_).same_as(model(others, bias).manifest(), "rank 1", "rank 0").ok());
}

TEST_F(ProtectedStateTest, a_difference_is_named_with_both_sides) {
  const ProtectedState mine = model(weights_, bias_);
  EXPECT_THAT(message(mine.same_as(model(weights_, bias_, 3).manifest(), "rank 2", "rank 0")),
              HasSubstr("rank 2 has 'weights' float32[2, 6]; rank 0 has [\"weights\",\"float32\",[3,4]] there"));
  EXPECT_THAT(message(mine.same_as(ProtectedState().manifest(), "rank 2", "rank 0")),
              HasSubstr("rank 2 has 2 names; rank 0 has 0."));
}

TEST_F(ProtectedStateTest, what_is_no_manifest_is_refused) {
  const ProtectedState mine = model(weights_, bias_);
  for (const char* text : {"", "7", "[]", "{}", R"({"tensors": 7})", R"({"tensors": [7, {}]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(mine.same_as(text, "rank 1", "rank 0"))) << text;
  }
}

TEST_F(ProtectedStateTest, names_and_memory_are_checked) {
  ProtectedState state = model(weights_, bias_);
  EXPECT_THAT(message(state.add("bias", &bias_, {}, "float64", 8)), HasSubstr("'bias' is taken"));
  EXPECT_THAT(message(state.add("a/b", &bias_, {}, "float64", 8)), HasSubstr("without a '/'"));
  EXPECT_THAT(message(state.add("none", nullptr, {}, "float64", 8)), HasSubstr("'none' (float64[]) has no memory"));
  EXPECT_THAT(message(state.add("empty", &bias_, {3, 0}, "float64", 8)), HasSubstr("no memory"));
  EXPECT_THAT(message(state.add("huge", &bias_, {size_t{1} << 40, size_t{1} << 40}, "float64", 8)),
              HasSubstr("more than there can be"));
}

TEST_F(ProtectedStateTest, a_change_since_it_was_remembered_is_named) {
  ProtectedState state = model(weights_, bias_);
  EXPECT_TRUE(state.unchanged(1).ok()) << "nothing was remembered";
  state.remember();
  EXPECT_TRUE(state.unchanged(1).ok());
  weights_[7] = 2.0F;
  EXPECT_THAT(message(state.unchanged(4)), HasSubstr("in step 4: 'weights'."));
  state.forget();
  EXPECT_TRUE(state.unchanged(5).ok());
}

}  // namespace
}  // namespace keepstep::rank
