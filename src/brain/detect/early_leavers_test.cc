#include "brain/detect/early_leavers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::brain {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr milliseconds kLook{100};

// A generation of three ranks that began at version 4 and committed step 5; all compute step 6.
class EarlyLeaversTest : public testing::Test {
 protected:
  EarlyLeaversTest() {
    sample_ = {.identity = {1, 2}, .world = 3, .version = 4, .trains = true, .ranks = {}};
    for (Rank rank = 0; rank < 3; ++rank) {
      RankProgress progress;
      progress.rank = rank;
      progress.worker = rank;
      progress.step = 6;
      progress.phase = StepPhase::kMicroBatch;
      progress.committed = 5;
      progress.entered = progress.left = progress.entered_world = 10;
      sample_.ranks.push_back(progress);
    }
    (void)look();
  }

  RankProgress& rank(Rank rank) { return sample_.ranks[rank]; }
  void leave(Rank which) {
    rank(which).step = 0;
    rank(which).phase = StepPhase::kOutside;
  }
  void returns(Rank which) {
    leave(which);
    rank(which).waits = WaitsIn::kEnd;
  }
  void waits_for_all(Rank which) {
    rank(which).waits = WaitsIn::kCollective;
    rank(which).world = true;
    ++rank(which).entered;
    ++rank(which).entered_world;
  }
  std::vector<EarlyLeaver> look() {
    now_ += kLook;
    return leavers_.step(sample_, now_);
  }
  std::vector<EarlyLeaver> watch(milliseconds time) {
    std::vector<EarlyLeaver> all;
    for (milliseconds passed{}; passed < time; passed += kLook) {
      for (EarlyLeaver& found : look()) {
        all.push_back(std::move(found));
      }
    }
    return all;
  }

  ProgressSample sample_;
  EarlyLeavers leavers_;
  Time now_{};
};

TEST_F(EarlyLeaversTest, a_rank_whose_function_returned_is_named_when_others_wait_for_it_in_a_later_step) {
  returns(1);
  waits_for_all(0);
  waits_for_all(2);
  EXPECT_THAT(watch(std::chrono::duration_cast<milliseconds>(EarlyLeavers::kLimit)), IsEmpty());
  const auto found = watch(milliseconds(300));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].returned());
  EXPECT_EQ(found[0].because, "rank 1's training function returned after step 5; ranks 0, 2 wait for it in step 6");
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, the_vote_waits_for_it_as_well) {
  returns(1);
  rank(0).waits = WaitsIn::kVote;
  const auto found = watch(milliseconds(4000));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].waiting, ElementsAre(0));
}

TEST_F(EarlyLeaversTest, one_that_left_its_loop_may_come_back_and_is_only_told) {
  leave(1);
  rank(0).waits = rank(2).waits = WaitsIn::kVote;
  const auto found = watch(milliseconds(4000));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].returned());
  EXPECT_EQ(found[0].because, "rank 1 left its loop over run.steps after step 5; ranks 0, 2 wait for it in step 6");
  rank(1).waits = WaitsIn::kEnd;
  const auto again = watch(milliseconds(4000));
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_TRUE(again[0].returned());
}

TEST_F(EarlyLeaversTest, one_that_waits_outside_in_a_collective_is_only_told) {
  // One of its own threads may be waiting there while the loop continues.
  leave(1);
  waits_for_all(1);
  rank(0).waits = rank(2).waits = WaitsIn::kVote;
  const auto found = watch(milliseconds(4000));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].returned());
}

TEST_F(EarlyLeaversTest, who_returns_before_the_first_step_is_named_too) {
  sample_.version = 0;
  for (Rank each = 0; each < 3; ++each) {
    rank(each).committed = 0;
    rank(each).step = 1;
  }
  returns(1);
  rank(0).waits = WaitsIn::kVote;
  const auto found = watch(milliseconds(4000));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].because, HasSubstr("returned before the first step"));
}

TEST_F(EarlyLeaversTest, ranks_that_all_left_after_the_same_step_are_not_early) {
  returns(0);
  returns(1);
  leave(2);
  EXPECT_THAT(watch(milliseconds(600'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, others_that_still_compute_or_move_do_not_wait) {
  returns(1);
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());  // they compute
  waits_for_all(0);
  for (int i = 0; i < 100; ++i) {
    ++rank(0).moved;
    EXPECT_THAT(watch(milliseconds(500)), IsEmpty());
  }
}

TEST_F(EarlyLeaversTest, others_that_finish_the_last_step_do_not_wait_for_whoever_is_done) {
  returns(1);
  rank(1).committed = 6;
  rank(0).phase = StepPhase::kUpdate;
  rank(0).waits = WaitsIn::kVote;
  rank(2).waits = WaitsIn::kVote;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, a_collective_of_others_is_no_reason) {
  returns(1);
  rank(0).waits = WaitsIn::kCollective;
  rank(0).members = 0b101;
  rank(2).waits = WaitsIn::kCollective;
  rank(2).members = 0b101;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, a_marked_section_a_pause_and_a_rank_before_its_loop_are_not_early) {
  leave(1);
  rank(1).slow = true;
  rank(0).waits = rank(2).waits = WaitsIn::kVote;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
  rank(1).slow = false;
  rank(1).waits = WaitsIn::kPause;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
  sample_.identity.generation = 3;  // the next one: it has not reached its loop yet
  sample_.version = 5;
  rank(1).waits = WaitsIn::kNothing;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, a_sealed_generation_and_a_stopped_agent_name_nobody) {
  returns(1);
  rank(0).waits = WaitsIn::kVote;
  now_ += milliseconds(60'000);
  EXPECT_THAT(look(), IsEmpty());
  sample_.trains = false;
  EXPECT_THAT(watch(milliseconds(60'000)), IsEmpty());
}

TEST_F(EarlyLeaversTest, ranks_of_other_nodes_wait_too_and_are_judged_there) {
  returns(1);
  rank(0).waits = WaitsIn::kVote;
  rank(0).still_for = Time{};
  EXPECT_THAT(watch(milliseconds(4000)), SizeIs(1));
  sample_.identity.generation = 3;
  rank(1).still_for = Time{};
  EXPECT_THAT(watch(milliseconds(4000)), IsEmpty());
}

}  // namespace
}  // namespace keepstep::brain
