#include "brain/recovery_ladder.h"

#include <gtest/gtest.h>

#include <optional>

#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;

std::vector<std::string> run_line(std::optional<RecoveryLadder>& ladder, const Line& line) {
  if (line.verb == "ladder") {
    LadderConfig config;
    config.redos_per_step = static_cast<int>(line.number("redos_per_step", 1));
    config.replacements_per_step = static_cast<int>(line.number("replacements_per_step", 3));
    config.links_per_step = static_cast<int>(line.number("links_per_step", 3));
    config.restarts = static_cast<int>(line.number("restarts", 3));
    ladder.emplace(config);
    return {};
  }
  if (line.verb == "progress") {
    ladder->on_progress(line.number("version"));
    return {};
  }
  const std::map<std::string, FaultKind> kinds = {{"exception", FaultKind::kException},
                                                  {"link", FaultKind::kLink},
                                                  {"death", FaultKind::kDeath},
                                                  {"no_source", FaultKind::kNoSource},
                                                  {"plain_death", FaultKind::kPlainDeath}};
  Fault fault{kinds.at(line.verb), static_cast<Rank>(line.number("rank")),
              line.number("step"), static_cast<int>(line.number("exit_code", 1)),
              line.text("what"),   line.text("traceback")};
  const LadderDecision decision = ladder->on_fault(fault);
  std::string text = std::string(name(decision.rung)) + " because=\"" + decision.because + "\"";
  if (decision.rung == Rung::kEnd) {
    text += " exit_code=" + std::to_string(decision.exit_code) + " traceback=\"" + decision.traceback + "\"";
  }
  return {text};
}

TEST(RecoveryLadder, reads_as_recorded) {
  std::optional<RecoveryLadder> ladder;
  EXPECT_EQ(transcript::check("recovery_ladder", [&](const Line& line) { return run_line(ladder, line); }), "");
}

TEST(RecoveryLadder, progress_past_a_step_gives_its_budgets_back_and_keeps_those_of_later_steps) {
  RecoveryLadder ladder({.redos_per_step = 1});
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 6}).rung, Rung::kRedo);
  ladder.on_progress(5);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 6}).rung, Rung::kEnd);
}

TEST(RecoveryLadder, deaths_and_exceptions_at_one_step_have_separate_budgets) {
  RecoveryLadder ladder({.redos_per_step = 1, .replacements_per_step = 1});
  EXPECT_EQ(ladder.on_fault({FaultKind::kDeath, 0, 5}).rung, Rung::kReplace);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kDeath, 0, 5}).rung, Rung::kRestart);
}

TEST(RecoveryLadder, broken_links_use_up_no_redo_of_an_exception_nor_an_exception_one_of_theirs) {
  RecoveryLadder ladder({.redos_per_step = 1, .links_per_step = 2});
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 0, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}).rung, Rung::kRedo);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}).rung, Rung::kRestart);
  EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 1, 5}).rung, Rung::kRedo) << "a restart gives the budget back";
  EXPECT_EQ(ladder.on_fault({FaultKind::kException, 0, 5}).rung, Rung::kEnd);
}

TEST(RecoveryLadder, a_link_that_breaks_at_every_step_but_lets_each_commit_never_ends_the_job) {
  RecoveryLadder ladder({});
  for (Step step = 1; step <= 100; ++step) {
    EXPECT_EQ(ladder.on_fault({FaultKind::kLink, 0, step}).rung, Rung::kRedo);
    ladder.on_progress(step);
  }
}

TEST(RecoveryLadder, restarts_are_counted_for_the_whole_job) {
  RecoveryLadder ladder({.restarts = 2});
  EXPECT_EQ(ladder.on_fault({FaultKind::kNoSource, 0, 5}).rung, Rung::kRestart);
  ladder.on_progress(100);
  EXPECT_EQ(ladder.on_fault({FaultKind::kPlainDeath, 0, 101}).rung, Rung::kRestart);
  EXPECT_EQ(ladder.on_fault({FaultKind::kNoSource, 0, 200}).rung, Rung::kEnd);
}

}  // namespace
}  // namespace keepstep::brain
