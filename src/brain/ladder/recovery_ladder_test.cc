#include "brain/ladder/recovery_ladder.h"

#include <gtest/gtest.h>

#include <optional>

#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;

std::vector<std::string> run_line(std::optional<RecoveryLadder>& ladder, Time& now, const Line& line) {
  if (line.verb == "ladder") {
    LadderConfig config;
    config.redos_per_step = static_cast<int>(line.number("redos_per_step", 1));
    config.replacements_per_step = static_cast<int>(line.number("replacements_per_step", 3));
    config.links_per_step = static_cast<int>(line.number("links_per_step", 3));
    config.restarts = static_cast<int>(line.number("restarts", 3));
    config.faults_per_node = static_cast<int>(line.number("faults_per_node", 3));
    config.node_window = std::chrono::seconds(line.number("node_window_s", 600));
    ladder.emplace(config);
    return {};
  }
  if (line.verb == "later") {
    now += std::chrono::seconds(line.number("by_s"));
    return {};
  }
  if (line.verb == "progress") {
    ladder->on_progress(line.number("version"));
    return {};
  }
  const std::map<std::string, Replaceability> values = {{"", Replaceability::kOnly},
                                                        {"has_rank_0", Replaceability::kHasRank0},
                                                        {"gone", Replaceability::kGone},
                                                        {"no_spare", Replaceability::kNoSpare},
                                                        {"replaceable", Replaceability::kReplaceable}};
  if (line.verb == "lie") {
    const Replaceability replaceability = values.at(line.text("place"));
    return {ladder->on_digest_mismatch(static_cast<NodeId>(line.number("node")), replaceability, now)
                ? "its ranks are to move"
                : "it stays"};
  }
  const std::map<std::string, FaultKind> kinds = {
      {"exception", FaultKind::kException}, {"link", FaultKind::kLink},
      {"digests", FaultKind::kDigests},     {"death", FaultKind::kDeath},
      {"no_source", FaultKind::kNoSource},  {"plain_death", FaultKind::kPlainDeath}};
  Fault fault{kinds.at(line.verb),
              static_cast<Rank>(line.number("rank")),
              line.number("step"),
              static_cast<int>(line.number("exit_code", 1)),
              line.text("what"),
              line.text("traceback"),
              static_cast<NodeId>(line.number("node")),
              values.at(line.text("place"))};
  fault.after_commit = line.text("after_commit") == "true";
  const LadderDecision decision = ladder->on_fault(fault, now);
  std::string text = std::string(name(decision.rung)) + " because=\"" + decision.because + "\"";
  if (decision.rung == Rung::kReplaceNode) {
    text += " node=" + std::to_string(decision.node);
  }
  if (decision.rung == Rung::kEnd) {
    text += " exit_code=" + std::to_string(decision.exit_code) + " traceback=\"" + decision.traceback + "\"";
  }
  return {text};
}

TEST(RecoveryLadder, reads_as_recorded) {
  std::optional<RecoveryLadder> ladder;
  Time now{};
  EXPECT_EQ(transcript::check("ladder/recovery_ladder", [&](const Line& line) { return run_line(ladder, now, line); }),
            "");
}

TEST(RecoveryLadder, progress_past_a_step_gives_its_budgets_back_and_keeps_those_of_later_steps) {
  RecoveryLadder ladder({.redos_per_step = 1});
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 6}, Time{}).rung, Rung::kRedo);
  ladder.on_progress(5);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 6}, Time{}).rung, Rung::kEnd);
}

TEST(RecoveryLadder, the_origin_of_an_exception_is_its_type_and_the_lines_it_passed) {
  const std::string first =
      "Traceback (most recent call last):\n  File \"t.py\", line 7, in train\n    check(x)\n"
      "  File \"t.py\", line 3, in check\n    raise ValueError(x)\nValueError: 17: too much\n";
  std::string other_value = first;
  other_value.replace(other_value.find("17"), 2, "99");
  std::string other_line = first;
  other_line.replace(other_line.find("line 3"), 6, "line 4");
  EXPECT_EQ(origin_of(first), origin_of(other_value));
  EXPECT_NE(origin_of(first), origin_of(other_line));
  EXPECT_EQ(origin_of(""), "");
  EXPECT_EQ(origin_of("  File"), "");
}

TEST(RecoveryLadder, no_more_failures_are_kept_than_can_be_told) {
  RecoveryLadder ladder({});
  for (Step step = 1; step < 1000; step += 5) {
    Fault fault{FaultKind::kException, 0, step};
    fault.what = "failure " + std::to_string(step);
    EXPECT_EQ(ladder.on_fault(fault, Time{}).rung, Rung::kRedo);
  }
  EXPECT_EQ(ladder.outlived().size(), RecoveryLadder::kMaxOutlived);
}

TEST(RecoveryLadder, deaths_and_exceptions_at_one_step_have_separate_budgets) {
  RecoveryLadder ladder({.redos_per_step = 1, .replacements_per_step = 1});
  EXPECT_EQ(ladder.on_fault({FaultKind::kDeath, 0, 5}, Time{}).rung, Rung::kReplace);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kDeath, 0, 5}, Time{}).rung, Rung::kRestartWithState);
}

TEST(RecoveryLadder, broken_links_use_up_no_redo_of_an_exception_nor_an_exception_one_of_theirs) {
  RecoveryLadder ladder({.redos_per_step = 1, .links_per_step = 2});
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 0, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}, Time{}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}, Time{}).rung, Rung::kRestartWithState);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}, Time{}).rung, Rung::kRedo) << "a restart gives the budget back";
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}, Time{}).rung, Rung::kEnd);
}

TEST(RecoveryLadder, a_link_that_breaks_at_every_step_but_lets_each_commit_never_ends_the_job) {
  RecoveryLadder ladder({});
  for (Step step = 1; step <= 100; ++step) {
    EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 0, step}, Time{}).rung, Rung::kRedo);
    ladder.on_progress(step);
  }
}

TEST(RecoveryLadder, faults_of_a_node_are_forgotten_with_time_and_not_with_progress) {
  RecoveryLadder ladder({.faults_per_node = 3, .node_window = std::chrono::seconds(60)});
  const auto at = [](int seconds) { return Time(std::chrono::seconds(seconds)); };
  const auto fault = [](Step step) {
    Fault fault{FaultKind::kDeath, 2, step};
    fault.node = 1;
    fault.replaceability = Replaceability::kReplaceable;
    return fault;
  };
  EXPECT_EQ(ladder.on_fault(fault(5), at(0)).rung, Rung::kReplace);
  ladder.on_progress(5);
  EXPECT_EQ(ladder.on_fault(fault(50), at(40)).rung, Rung::kReplace);
  ladder.on_progress(50);
  EXPECT_EQ(ladder.on_fault(fault(70), at(60)).rung, Rung::kReplace) << "the first one was a minute ago";
  ladder.on_progress(70);
  EXPECT_EQ(ladder.faults_on(1, at(60)), 2);
  EXPECT_EQ(ladder.on_fault(fault(71), at(61)).rung, Rung::kReplaceNode);
  EXPECT_EQ(ladder.faults_on(1, at(1000)), 0);
}

TEST(RecoveryLadder, a_node_is_never_replaced_where_its_budget_is_zero) {
  RecoveryLadder ladder({.faults_per_node = 0});
  Fault fault{FaultKind::kDeath, 2, 1};
  fault.node = 1;
  fault.replaceability = Replaceability::kReplaceable;
  for (fault.step = 1; fault.step < 20; ++fault.step) {
    EXPECT_EQ(ladder.on_fault(fault, Time{}).rung, Rung::kReplace);
    ladder.on_progress(fault.step);
  }
}

TEST(RecoveryLadder, restarts_are_counted_for_the_whole_job) {
  RecoveryLadder ladder({.restarts = 2});
  EXPECT_EQ(ladder.on_fault({FaultKind::kNoSource, 0, 5}, Time{}).rung, Rung::kRestart);
  ladder.on_progress(100);
  EXPECT_EQ(ladder.on_fault({FaultKind::kPlainDeath, 0, 101}, Time{}).rung, Rung::kRestart);
  EXPECT_EQ(ladder.on_fault({FaultKind::kNoSource, 0, 200}, Time{}).rung, Rung::kEnd);
}

TEST(RecoveryLadder, what_the_update_raised_on_all_ranks_is_named_and_ends_the_job_when_it_comes_back) {
  RecoveryLadder ladder({});
  const Fault raised{FaultKind::kException, 1, 7, 1, "rank 1 failed at step 7: TypeError: closure", "Traceback"};
  const Fault nothing_left{FaultKind::kNoSource, 0, 8, 1, "no clean copy of step 7 is left"};
  EXPECT_EQ(ladder.on_fault(raised, Time{}).rung, Rung::kRedo);
  ladder.on_progress(7);  // all had voted
  const LadderDecision first = ladder.on_fault(nothing_left, Time{});
  EXPECT_EQ(first.rung, Rung::kRestart);
  EXPECT_EQ(first.because,
            "rank 1 failed at step 7: TypeError: closure; no clean copy of step 7 is left: restart 1 of 3");
  EXPECT_EQ(ladder.on_fault(raised, Time{}).rung, Rung::kRedo);
  ladder.on_progress(7);
  const LadderDecision second = ladder.on_fault(nothing_left, Time{});
  EXPECT_EQ(second.rung, Rung::kEnd);
  EXPECT_EQ(second.because,
            "rank 1 failed at step 7: TypeError: closure; no clean copy of step 7 is left; the same happened again "
            "after a restart");
  EXPECT_EQ(second.traceback, "Traceback");
}

TEST(RecoveryLadder, an_exception_is_not_to_blame_for_what_other_faults_took) {
  RecoveryLadder ladder({});
  const Fault nothing_left{FaultKind::kNoSource, 0, 8, 1, "no clean copy of step 7 is left"};
  const Fault raised{FaultKind::kException, 1, 7, 1, "rank 1 failed at step 7"};
  ladder.on_fault(raised, Time{});
  ladder.on_fault({FaultKind::kDeath, 0, 7}, Time{});
  EXPECT_EQ(ladder.on_fault(nothing_left, Time{}).because, "no clean copy of step 7 is left: restart 1 of 3");
  ladder.on_fault(raised, Time{});
  ladder.on_progress(30);
  const Fault later{FaultKind::kNoSource, 0, 31, 1, "no clean copy of step 30 is left"};
  EXPECT_EQ(ladder.on_fault(later, Time{}).because, "no clean copy of step 30 is left: restart 2 of 3");
}

}  // namespace
}  // namespace keepstep::brain
