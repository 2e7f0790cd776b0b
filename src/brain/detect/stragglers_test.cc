#include "brain/detect/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace keepstep::brain {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Identity kIdentity{1, 2};

// Medians of ranks 0, 1, ... that compute this many milliseconds, in steps as long as the longest one.
std::vector<RankPace> paces(const std::vector<int>& computed_ms) {
  const int step_ms = *std::max_element(computed_ms.begin(), computed_ms.end()) + 5;
  std::vector<RankPace> result;
  for (const int ms : computed_ms) {
    result.push_back({static_cast<Rank>(result.size()), milliseconds(ms), milliseconds(ms), milliseconds(step_ms)});
  }
  return result;
}

std::vector<Rank> named_after(const std::vector<std::vector<int>>& windows) {
  StragglerDetector detector;
  for (const auto& window : windows) {
    detector.step(kIdentity, static_cast<uint32_t>(window.size()), paces(window));
  }
  std::vector<Rank> ranks;
  for (const auto& [rank, news] : detector.named()) {
    ranks.push_back(rank);
  }
  return ranks;
}

TEST(Stragglers, a_rank_that_computes_twice_as_long_is_named_once_with_the_share_lost_to_it) {
  StragglerDetector detector;
  EXPECT_THAT(detector.step(kIdentity, 4, paces({100, 195, 102, 98})), IsEmpty());
  EXPECT_THAT(detector.step(kIdentity, 4, paces({100, 195, 102, 98})), IsEmpty());
  const std::vector<StragglerNews> news = detector.step(kIdentity, 4, paces({100, 195, 102, 98}));
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].rank, 1u);
  EXPECT_TRUE(news[0].slow);
  EXPECT_EQ(news[0].computed, milliseconds(195));
  EXPECT_EQ(news[0].others, milliseconds(100));
  EXPECT_DOUBLE_EQ(news[0].share, 0.475);
  EXPECT_THAT(detector.step(kIdentity, 4, paces({100, 195, 102, 98})), IsEmpty()) << "it is known";
  EXPECT_TRUE(detector.named().contains(1));
}

TEST(Stragglers, it_ends_when_the_rank_keeps_up_again) {
  StragglerDetector detector;
  for (int i = 0; i < 3; ++i) {
    detector.step(kIdentity, 2, paces({100, 200}));
  }
  EXPECT_THAT(detector.step(kIdentity, 2, paces({100, 101})), IsEmpty());
  EXPECT_THAT(detector.step(kIdentity, 2, paces({100, 200})), IsEmpty()) << "one good window is not the end";
  EXPECT_THAT(detector.step(kIdentity, 2, paces({100, 101})), IsEmpty());
  const std::vector<StragglerNews> news = detector.step(kIdentity, 2, paces({100, 101}));
  ASSERT_EQ(news.size(), 1u);
  EXPECT_FALSE(news[0].slow);
  EXPECT_THAT(detector.named(), IsEmpty());
}

TEST(Stragglers, even_ranks_and_single_slow_windows_name_nobody) {
  EXPECT_THAT(named_after({{100, 100, 100}, {104, 99, 100}, {100, 110, 95}}), IsEmpty());
  EXPECT_THAT(named_after({{100, 200}, {100, 200}, {100, 100}, {100, 200}, {200, 100}, {100, 200}}), IsEmpty());
}

TEST(Stragglers, what_costs_the_step_little_is_not_worth_a_word) {
  // Three times as long as the others, but only 2 ms of a 100 ms step.
  StragglerDetector detector;
  for (int i = 0; i < 9; ++i) {
    detector.step(kIdentity, 2,
                  {{0, milliseconds(1), milliseconds(1), milliseconds(100)},
                   {1, milliseconds(3), milliseconds(3), milliseconds(100)}});
  }
  EXPECT_THAT(detector.named(), IsEmpty());
}

TEST(Stragglers, a_rank_whose_quick_steps_are_as_quick_as_the_others_is_held_up_by_something_else) {
  std::vector<RankPace> window = paces({100, 200, 100});
  for (const bool even_then : {false, true}) {
    window[1].quick = milliseconds(even_then ? 101 : 100);
    StragglerDetector detector;
    for (int i = 0; i < 5; ++i) {
      detector.step(kIdentity, 3, window);
    }
    EXPECT_EQ(detector.named().contains(1), even_then);
  }
}

// Four ranks on two CPUs with other work: step times are mostly chance, and chance is uneven.
TEST(Stragglers, an_overloaded_machine_names_nobody) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::lognormal_distribution<double> chance(0, 0.8);
  StragglerDetector detector;
  StepWindow window;
  const std::vector<Rank> ranks = {0, 1, 2, 3};
  Time now = std::chrono::seconds(1);
  for (int step = 0; step < 5000; ++step) {
    Time longest{};
    std::vector<Time> computed;
    for (Rank rank : ranks) {
      const double ms = (rank == 2 ? 13 : 10) * chance(random);
      computed.push_back(std::chrono::duration_cast<Time>(std::chrono::duration<double, std::milli>(ms)));
      longest = std::max(longest, computed.back());
    }
    now += longest;
    for (Rank rank : ranks) {
      window.add(kIdentity, rank, computed[rank], now);
    }
    if (const auto paces = window.take(ranks, now)) {
      EXPECT_THAT(detector.step(kIdentity, 4, *paces), IsEmpty()) << "step " << step;
    }
  }
}

TEST(Stragglers, two_slow_ranks_do_not_hide_each_other) {
  EXPECT_THAT(named_after({{100, 200, 200}, {100, 200, 200}, {100, 200, 200}}), ElementsAre(1, 2));
  EXPECT_THAT(named_after({{100, 90, 200, 220}, {100, 90, 200, 220}, {100, 90, 200, 220}}), ElementsAre(2, 3));
}

TEST(Stragglers, of_one_rank_alone_nobody_can_say_that_it_is_slow) {
  EXPECT_THAT(named_after({{5}, {5}, {5}}), IsEmpty());
}

TEST(Stragglers, ranks_of_several_nodes_are_judged_together_once_all_have_told) {
  StragglerDetector detector;
  const std::vector<RankPace> all = paces({100, 100, 100, 180});
  const std::vector<RankPace> here(all.begin(), all.begin() + 2);
  const std::vector<RankPace> there(all.begin() + 2, all.end());
  std::vector<StragglerNews> news;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(detector.step(kIdentity, 4, here), IsEmpty());
    EXPECT_THAT(detector.step(kIdentity, 4, here), IsEmpty()) << "twice from one node is one window";
    news = detector.step(kIdentity, 4, there);
  }
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].rank, 3u);
}

TEST(Stragglers, a_new_generation_begins_anew_and_the_old_one_is_not_heard) {
  StragglerDetector detector;
  detector.step(kIdentity, 2, paces({100, 200}));
  detector.step(kIdentity, 2, paces({100, 200}));
  EXPECT_THAT(detector.step({1, 3}, 2, paces({100, 200})), IsEmpty());
  EXPECT_THAT(detector.step(kIdentity, 2, paces({100, 200})), IsEmpty());
  EXPECT_THAT(detector.step({1, 3}, 2, paces({100, 200})), IsEmpty());
  EXPECT_EQ(detector.step({1, 3}, 2, paces({100, 200})).size(), 1u);
  // The worker was replaced: the rank is judged again.
  EXPECT_THAT(detector.step({1, 4}, 2, paces({100, 100})), IsEmpty());
  const std::vector<StragglerNews> news = detector.step({1, 4}, 2, paces({100, 100}));
  ASSERT_EQ(news.size(), 1u);
  EXPECT_FALSE(news[0].slow);
}

TEST(Stragglers, what_no_agent_would_say_is_left_out) {
  StragglerDetector detector;
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(
        detector.step(kIdentity, 2,
                      {{0, {}, {}, {}}, {7, milliseconds(1), milliseconds(1), milliseconds(1)}, {1, {}, {}, {}}}),
        IsEmpty());
  }
}

// Noise of a busy machine: occasionally, a step of a rank takes up to three times as long.
TEST(Stragglers, random_noise_names_nobody_and_a_slow_rank_in_it_is_named) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> noise(1.0, 1.3);
  std::bernoulli_distribution held_up(0.1);
  for (const bool slow : {false, true}) {
    StragglerDetector detector;
    StepWindow window;
    const std::vector<Rank> ranks = {0, 1, 2, 3};
    Time now = std::chrono::seconds(1);
    for (Rank rank : ranks) {
      window.add(kIdentity, rank, {}, now);
    }
    for (int step = 0; step < 2000; ++step) {
      std::vector<Time> computed;
      for (Rank rank : ranks) {
        const double ms = (slow && rank == 2 ? 80 : 50) * noise(random) * (held_up(random) ? 3 : 1);
        computed.push_back(std::chrono::duration_cast<Time>(std::chrono::duration<double, std::milli>(ms)));
      }
      now += *std::max_element(computed.begin(), computed.end()) + milliseconds(3);
      for (Rank rank : ranks) {
        window.add(kIdentity, rank, computed[rank], now);
      }
      if (const auto medians = window.take(ranks, now)) {
        for (const StragglerNews& news : detector.step(kIdentity, 4, *medians)) {
          EXPECT_TRUE(slow && news.slow && news.rank == 2) << news.rank << " at step " << step;
        }
      }
    }
    EXPECT_EQ(detector.named().contains(2), slow);
  }
}

TEST(StepWindow, gives_medians_once_all_ranks_have_enough_steps_and_a_second_passed) {
  StepWindow window;
  Time now = std::chrono::seconds(10);
  const auto commit = [&](Rank rank, int ms) { window.add(kIdentity, rank, milliseconds(ms), now); };
  commit(0, 7);  // starts the first step that counts
  commit(1, 7);
  for (size_t i = 0; i < StepWindow::kLeastSteps; ++i) {
    now += milliseconds(200);
    commit(0, i == 3 ? 190 : i < 2 ? 40 : 50);
    EXPECT_FALSE(window.take({0, 1}, now)) << "nothing of rank 1";
  }
  now += milliseconds(10);
  for (size_t i = 0; i < StepWindow::kLeastSteps; ++i) {
    commit(1, 60);
    now += milliseconds(200);
  }
  const auto medians = window.take({0, 1}, now);
  ASSERT_TRUE(medians);
  EXPECT_EQ((*medians)[0], (RankPace{0, milliseconds(50), milliseconds(40), milliseconds(200)}));
  EXPECT_EQ((*medians)[1].computed, milliseconds(60));
  EXPECT_FALSE(window.take({0, 1}, now + std::chrono::seconds(5))) << "a new window";
}

TEST(StepWindow, fast_steps_wait_for_the_second_and_only_the_newest_are_kept) {
  StepWindow window;
  Time now = std::chrono::seconds(10);
  window.add(kIdentity, 0, {}, now);
  for (size_t i = 0; i < 3 * StepWindow::kMaxSteps; ++i) {
    now += std::chrono::microseconds(100);
    window.add(kIdentity, 0, std::chrono::microseconds(i < 2 * StepWindow::kMaxSteps ? 10 : 30), now);
    EXPECT_FALSE(window.take({0}, now));
  }
  const auto medians = window.take({0}, std::chrono::seconds(11));
  ASSERT_TRUE(medians);
  EXPECT_EQ((*medians)[0], (RankPace{0, std::chrono::microseconds(30), std::chrono::microseconds(30),
                                     std::chrono::microseconds(100)}));
}

TEST(StepWindow, a_new_generation_forgets_the_steps_before_it) {
  StepWindow window;
  Time now = std::chrono::seconds(10);
  for (size_t i = 0; i <= StepWindow::kLeastSteps; ++i) {
    window.add(kIdentity, 0, milliseconds(5), now += milliseconds(200));
  }
  window.add({1, 3}, 0, {}, now += milliseconds(10));
  window.add(kIdentity, 0, milliseconds(5), now += milliseconds(10));  // late
  EXPECT_EQ(window.identity(), (Identity{1, 3}));
  EXPECT_FALSE(window.take({0}, now + std::chrono::seconds(9)));
}

}  // namespace
}  // namespace keepstep::brain
