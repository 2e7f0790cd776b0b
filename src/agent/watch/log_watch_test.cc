#include "agent/watch/log_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;
constexpr brain::WorkerId kWorker = 7;

// A watch over one rank, checked every second, with its findings so far.
class LogWatchTest : public ::testing::Test {
 protected:
  void begin(LogRule rule, brain::Rank rank = 1) {
    rule.name = "it";
    watch_ = std::make_unique<LogWatch>(std::vector<LogRule>{std::move(rule)});
    watch_->assigned(kWorker, rank, now_);
  }
  void say(const std::string& text) { watch_->lines(kWorker, text, now_); }
  // The sentences found while this many seconds pass.
  std::vector<std::string> after(int seconds) {
    std::vector<std::string> found;
    for (int i = 0; i <= seconds; ++i) {
      for (const LogFinding& each : watch_->take(now_)) {
        found.push_back(each.what);
        last_ = each;
      }
      now_ += i < seconds ? kSecond : 0;
    }
    return found;
  }

  std::unique_ptr<LogWatch> watch_;
  int64_t now_ = 100 * kSecond;
  LogFinding last_;
};

TEST_F(LogWatchTest, a_line_that_matches_is_found_in_the_middle_of_many) {
  begin({.pattern = "loss (nan|inf)", .action = RuleAction::kReplace});
  say("loss 1.5\nstep 3: loss nan here\nloss 2\n");
  const auto found = after(0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "printed 'step 3: loss nan here'");
  EXPECT_EQ(last_.rank, 1u);
  EXPECT_EQ(last_.worker, kWorker);
  EXPECT_EQ(last_.action, RuleAction::kReplace);
}

TEST_F(LogWatchTest, a_worker_that_is_to_be_replaced_is_asked_nothing_more) {
  begin({.pattern = "bad", .action = RuleAction::kReplace});
  say("bad\nbad\n");
  say("bad\n");
  EXPECT_EQ(after(60).size(), 1u);
}

TEST_F(LogWatchTest, lines_that_do_not_match_and_lines_of_others_are_nothing) {
  begin({.pattern = "bad"});
  say("good\n\n\nalso good");
  watch_->lines(kWorker + 1, "bad\n", now_);
  EXPECT_THAT(after(0), IsEmpty());
}

TEST_F(LogWatchTest, of_a_worker_that_ended_lines_still_count_and_none_is_awaited) {
  begin({.pattern = "bad", .every_s = 5});
  watch_->ended(kWorker);
  say("bad\n");
  EXPECT_THAT(after(60), IsEmpty());
  begin({.pattern = "bad"});
  watch_->ended(kWorker);
  say("bad\n");
  EXPECT_EQ(after(0).size(), 1u);
}

TEST_F(LogWatchTest, a_worker_that_ended_and_has_a_rank_again_is_awaited_from_there_on) {
  begin({.pattern = "step", .every_s = 5});
  say("step 1\n");
  watch_->ended(kWorker);
  EXPECT_THAT(after(60), IsEmpty());
  watch_->assigned(kWorker, 1, now_);
  EXPECT_THAT(after(5), IsEmpty());
  EXPECT_EQ(after(1).size(), 1u);
}

TEST_F(LogWatchTest, ranks_that_are_not_named_are_asked_nothing) {
  begin({.pattern = "bad", .ranks = std::vector<uint32_t>{0, 2}}, 1);
  say("bad\n");
  EXPECT_THAT(after(0), IsEmpty());
  begin({.pattern = "bad", .ranks = std::vector<uint32_t>{0, 2}}, 2);
  say("bad\n");
  EXPECT_EQ(after(0).size(), 1u);
}

TEST_F(LogWatchTest, a_count_waits_for_so_many_lines) {
  begin({.pattern = "retry", .count = 3});
  say("retry\nretry\n");
  EXPECT_THAT(after(0), IsEmpty());
  say("other\nretry\n");
  EXPECT_THAT(after(0), ::testing::ElementsAre(HasSubstr("3 such lines")));
}

TEST_F(LogWatchTest, a_threshold_must_be_passed_in_a_row) {
  begin({.pattern = "took ([0-9.]+|nan) s", .threshold = Threshold{Comparison::kGreater, 10}, .count = 2});
  say("took 11 s\ntook 9 s\ntook 12 s\n");
  EXPECT_THAT(after(0), IsEmpty());
  say("nothing\ntook nan s\n");
  EXPECT_EQ(after(0).size(), 1u);
}

TEST_F(LogWatchTest, journalled_findings_of_a_flood_are_few_and_say_how_many_they_stand_for) {
  begin({.pattern = "bad"});
  for (int i = 0; i < 1000; ++i) {
    say("bad\n");
  }
  EXPECT_EQ(after(0).size(), 1u);
  now_ += kQuietNs;
  say("bad\n");
  EXPECT_EQ(after(0).size(), 1u);
  EXPECT_EQ(last_.repeats, 999u);
}

TEST_F(LogWatchTest, a_first_line_that_does_not_come_is_found_once) {
  begin({.pattern = "begin", .first_within_s = 20});
  EXPECT_THAT(after(20), IsEmpty());
  EXPECT_THAT(after(1), ::testing::ElementsAre("printed nothing that matches 'begin' within 20 s"));
  EXPECT_THAT(after(100), IsEmpty());
}

TEST_F(LogWatchTest, a_first_line_that_came_is_not_asked_for_again_after_a_recovery) {
  begin({.pattern = "begin", .first_within_s = 20});
  say("begin\n");
  watch_->assigned(kWorker, 1, now_);
  EXPECT_THAT(after(100), IsEmpty());
}

TEST_F(LogWatchTest, a_line_must_come_again_and_again_once_it_came) {
  begin({.pattern = "alive", .every_s = 10});
  EXPECT_THAT(after(100), IsEmpty());
  for (int i = 0; i < 5; ++i) {
    say("alive\n");
    EXPECT_THAT(after(10), IsEmpty());
  }
  EXPECT_THAT(after(1), ::testing::ElementsAre("printed nothing that matches 'alive' for 10 s"));
}

TEST_F(LogWatchTest, until_ends_what_a_rule_asks) {
  begin({.pattern = "alive", .until = "the end", .every_s = 10});
  say("alive\nthe end\n");
  EXPECT_THAT(after(100), IsEmpty());
}

TEST_F(LogWatchTest, time_in_which_nobody_listened_does_not_count) {
  begin({.pattern = "alive", .every_s = 10});
  say("alive\n");
  EXPECT_THAT(after(5), IsEmpty());
  now_ += 3600 * kSecond;  // the launcher was stopped
  EXPECT_THAT(after(4), IsEmpty());
  EXPECT_EQ(after(3).size(), 1u);
}

TEST_F(LogWatchTest, of_an_endless_line_only_the_beginning_counts) {
  begin({.pattern = "bad"});
  say(std::string(kMatchedBytes, 'x') + "bad\n");
  EXPECT_THAT(after(0), IsEmpty());
  say("bad" + std::string(1 << 20, 'x'));
  const auto found = after(0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_LT(found[0].size(), 300u);
}

}  // namespace
}  // namespace keepstep::agent
