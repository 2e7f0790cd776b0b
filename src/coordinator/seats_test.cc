#include "coordinator/seats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Attending = std::map<brain::NodeId, std::string>;

class SeatsTest : public ::testing::Test {
 protected:
  StatusOr<brain::NodeId> take(int index, const Attending& attending = {{0, "a"}}) {
    return seats_.take(&keys_.at(static_cast<size_t>(index)), "host" + std::to_string(index), attending);
  }
  Seats seats_{3};
  std::array<int, 5> keys_{};
};

TEST_F(SeatsTest, numbers_are_given_in_the_order_of_coming_and_never_0) {
  EXPECT_EQ(*take(0), 1);
  EXPECT_EQ(*take(1), 2);
}

TEST_F(SeatsTest, the_number_of_one_that_went_before_it_attended_is_given_again) {
  EXPECT_EQ(*take(0), 1);
  EXPECT_EQ(*take(1), 2);
  seats_.free(&keys_[0]);
  EXPECT_EQ(*take(2), 1);
}

TEST_F(SeatsTest, who_attends_keeps_its_number_when_its_seat_is_free) {
  EXPECT_EQ(*take(0), 1);
  seats_.free(&keys_[0]);
  EXPECT_EQ(*take(1, {{0, "a"}, {1, "b"}}), 2);
}

TEST_F(SeatsTest, a_lost_nodes_number_goes_to_who_comes_next) { EXPECT_EQ(*take(0, {{0, "a"}, {2, "c"}}), 1); }

TEST_F(SeatsTest, one_too_many_hears_who_is_there) {
  EXPECT_TRUE(take(0).ok());
  const auto refused = take(1, {{0, "a"}, {2, "c"}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("all 3 nodes"), HasSubstr("node 0 is 'a', node 1 is 'host0', node 2 is 'c'"),
                    HasSubstr("--spare-nodes")));
}

TEST_F(SeatsTest, freeing_what_was_never_taken_changes_nothing) {
  EXPECT_EQ(*take(0), 1);
  seats_.free(&keys_[4]);
  EXPECT_EQ(*take(1), 2);
}

}  // namespace
}  // namespace keepstep::coordinator
