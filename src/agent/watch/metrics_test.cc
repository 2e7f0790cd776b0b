#include "agent/watch/metrics.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace keepstep::agent {
namespace {

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    char folder[] = "/tmp/keepstep-metrics-XXXXXX";
    folder_ = mkdtemp(folder);
    journal_ = *observe::Journal::open(folder_ + "/journal", 0);
    metrics_ = std::make_unique<Metrics>(*journal_);
  }
  ~MetricsTest() override { std::filesystem::remove_all(folder_); }

  std::vector<nlohmann::json> lines() {
    EXPECT_TRUE(journal_->flush(std::chrono::minutes(1)));
    std::ifstream file(folder_ + "/journal/metrics.jsonl");
    std::vector<nlohmann::json> result;
    for (std::string line; std::getline(file, line);) {
      result.push_back(nlohmann::json::parse(line));
    }
    return result;
  }
  bool progress(brain::Rank rank, brain::Step step, double loss, uint32_t generation = 1) {
    return metrics_->on_progress(rank, step, {1, generation}, 1'000'000 * static_cast<int64_t>(step), {0, 1},
                                 LossPart{loss, 1});
  }

  std::string folder_;
  std::unique_ptr<observe::Journal> journal_;
  std::unique_ptr<Metrics> metrics_;
};

TEST_F(MetricsTest, a_line_waits_until_all_ranks_are_past_its_step_and_comes_once) {
  EXPECT_FALSE(progress(0, 1, 1.0));
  EXPECT_TRUE(progress(1, 1, 3.0));
  EXPECT_TRUE(lines().empty()) << "users may still log for step 1";
  metrics_->on_log(1, 1, R"({"who":1})");
  metrics_->on_log(0, 1, R"({"who":0})");
  progress(0, 2, 1.0);
  progress(1, 2, 1.0);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0].at("step"), 1);
  EXPECT_EQ(lines()[0].at("loss"), 2.0);
  EXPECT_EQ(lines()[0].at("who"), 0) << "the lowest rank's value counts";
  progress(0, 1, 9.0);
  metrics_->flush(2);
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(MetricsTest, a_rank_that_died_after_its_vote_counts_with_what_its_page_said) {
  metrics_->keep(1, 1, {1, 1}, LossPart{5.0, 1});
  metrics_->keep(1, 1, {1, 2}, LossPart{7.0, 1});  // the next generation ended at once
  progress(0, 1, 1.0);
  metrics_->flush(1);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0].at("loss"), 3.0);
}

TEST_F(MetricsTest, a_line_has_no_loss_rather_than_one_that_lacks_a_rank) {
  metrics_->keep(1, 1, {1, 2}, LossPart{5.0, 1});  // from another attempt
  progress(0, 1, 1.0);
  metrics_->flush(1);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_FALSE(lines()[0].contains("loss"));
}

TEST_F(MetricsTest, what_was_logged_for_a_step_that_is_redone_is_replaced) {
  metrics_->on_log(0, 1, R"({"x":"first attempt"})");
  metrics_->on_log(0, 1, R"({"x":"second attempt"})");
  progress(0, 1, 1.0);
  metrics_->flush(1);
  EXPECT_EQ(lines()[0].at("x"), "second attempt");
}

TEST_F(MetricsTest, a_restart_forgets_what_was_not_committed) {
  progress(0, 1, 1.0);
  metrics_->flush(1);
  metrics_->on_log(0, 2, R"({"x":1})");
  metrics_->begin({1, 2}, 0);
  EXPECT_EQ(metrics_->last_step(), 0u) << "what commands and the status line are told";
  progress(0, 1, 7.0, 2);
  progress(1, 1, 7.0, 2);
  metrics_->flush(1);
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[1].at("loss"), (7.0));
}

TEST_F(MetricsTest, ranks_that_end_their_update_after_their_generation_flush_nothing_of_the_next_one) {
  for (brain::Step step = 1; step <= 3; ++step) {
    progress(0, step, 1.0);
    progress(1, step, 1.0);
  }
  metrics_->begin({1, 2}, 1);  // a shard of step 4 is lost, and those of 3 and 2 with it
  progress(0, 4, 1.0);
  progress(1, 4, 1.0);
  for (brain::Step step = 2; step <= 5; ++step) {
    progress(0, step, 1.0, 2);
    progress(1, step, 1.0, 2);
  }
  metrics_->flush(5);
  std::set<int> steps;
  for (const nlohmann::json& line : lines()) {
    steps.insert(line.at("step").get<int>());
  }
  EXPECT_EQ(steps, (std::set<int>{1, 2, 3, 4, 5}));
}

TEST_F(MetricsTest, what_the_next_generation_begins_with_counts_however_late_it_is_reported) {
  progress(0, 1, 1.0);
  metrics_->begin({1, 2}, 1);
  EXPECT_TRUE(progress(1, 1, 3.0));
  metrics_->flush(1);
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0].at("loss"), 2.0);
}

}  // namespace
}  // namespace keepstep::agent
