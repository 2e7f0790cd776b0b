#include "agent/watch/clock_probe.h"

#include <gtest/gtest.h>

namespace keepstep::agent {
namespace {

constexpr int64_t kMs = 1'000'000;

// Asks and answers once: `there` and `back` are the times of the two ways; their clock is `ahead` of ours.
void exchange(ClockProbe& probe, int64_t& now_ns, int64_t there, int64_t back, int64_t ahead) {
  const int64_t wall_ns = 1'000'000 * kMs + now_ns;
  const uint64_t number = probe.ask(wall_ns, now_ns);
  now_ns += there + back;
  EXPECT_TRUE(probe.answered(number, wall_ns + there + ahead, now_ns));
}

TEST(ClockProbe, the_quickest_of_several_exchanges_counts) {
  ClockProbe probe;
  int64_t now_ns = 5 * kMs;
  for (int i = 0; i < ClockProbe::kExchanges; ++i) {
    EXPECT_FALSE(probe.result()) << i;
    // One way is slow, so their answer is far from the middle of the exchange; except once.
    exchange(probe, now_ns, i == 5 ? kMs : 400 * kMs, kMs, -3000 * kMs);
  }
  ASSERT_TRUE(probe.result());
  EXPECT_EQ(probe.result()->offset_ns, 3000 * kMs) << "ours is ahead";
  EXPECT_EQ(probe.result()->round_trip_ns, 2 * kMs);
}

TEST(ClockProbe, what_the_round_trip_may_explain_is_no_difference) {
  EXPECT_FALSE((ClockOffset{1400 * kMs, 1000 * kMs}.beyond(1000 * kMs)));
  EXPECT_TRUE((ClockOffset{1600 * kMs, 1000 * kMs}.beyond(1000 * kMs)));
  EXPECT_TRUE((ClockOffset{-1600 * kMs, 1000 * kMs}.beyond(1000 * kMs)));
}

TEST(ClockProbe, only_the_answer_to_the_last_question_counts_and_once) {
  ClockProbe probe;
  const uint64_t lost = probe.ask(0, 0);
  EXPECT_EQ(probe.unanswered(), 1);
  const uint64_t number = probe.ask(10, 10);
  EXPECT_EQ(probe.unanswered(), 2);
  EXPECT_FALSE(probe.answered(lost, 0, 20));
  EXPECT_TRUE(probe.answered(number, 0, 20));
  EXPECT_FALSE(probe.answered(number, 0, 20));
  EXPECT_EQ(probe.unanswered(), 0);
  const uint64_t before = probe.ask(30, 30);
  probe.begin();
  EXPECT_FALSE(probe.answered(before, 0, 40)) << "of the round before";
}

TEST(ClockProbe, a_new_round_forgets_the_offset_of_the_one_before) {
  ClockProbe probe;
  int64_t now_ns = 0;
  for (int i = 0; i < ClockProbe::kExchanges; ++i) {
    exchange(probe, now_ns, kMs, kMs, 0);
  }
  probe.begin();
  EXPECT_FALSE(probe.result());
  for (int i = 0; i < ClockProbe::kExchanges; ++i) {
    exchange(probe, now_ns, 2 * kMs, 2 * kMs, 700 * kMs);
  }
  EXPECT_EQ(probe.result()->offset_ns, -700 * kMs);
}

}  // namespace
}  // namespace keepstep::agent
