#include "comm/wait_clock.h"

#include <gtest/gtest.h>

namespace keepstep::comm {
namespace {

TEST(WaitClock, threads_that_wait_at_one_time_count_once) {
  WaitClock clock;
  clock.begin(1, 100);
  clock.begin(2, 110);
  clock.end(130);
  EXPECT_EQ(clock.total_ns(), 0) << "one still waits";
  clock.end(150);
  clock.begin(3, 200);
  clock.end(201);
  EXPECT_EQ(clock.total_ns(), 51);
}

TEST(WaitClock, computing_between_a_collective_and_the_wait_for_it_is_no_waiting) {
  WaitClock clock;
  clock.handed_in(1, 100);
  clock.over(1, 180);
  clock.begin(1, 190);
  clock.end(191);
  EXPECT_EQ(clock.total_ns(), 1);
}

TEST(WaitClock, who_takes_the_last_collective_through_a_future_waited_for_it) {
  WaitClock clock;
  clock.handed_in(1, 100);  // overlapped with computing
  clock.watched(1);
  clock.handed_in(2, 150);
  clock.watched(2);
  clock.over(1, 170);
  clock.over(2, 250);
  clock.begin(0, 260);  // the vote
  clock.end(270);
  EXPECT_EQ(clock.total_ns(), 110);
  clock.begin(0, 300);
  clock.end(305);
  EXPECT_EQ(clock.total_ns(), 115) << "counted once";
}

TEST(WaitClock, a_collective_that_is_not_over_when_somebody_waits_for_something_else_held_nobody) {
  WaitClock clock;
  clock.handed_in(1, 100);
  clock.watched(1);
  clock.begin(0, 120);
  clock.over(1, 130);
  clock.end(140);
  EXPECT_EQ(clock.total_ns(), 20);
}

}  // namespace
}  // namespace keepstep::comm
