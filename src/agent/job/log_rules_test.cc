#include "agent/job/log_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace keepstep::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

ParsedLogRules parsed(const std::string& text) { return parse_log_rules(text, "rules.yaml", 4); }

TEST(LogRules, a_file_is_read_with_all_its_values) {
  const ParsedLogRules file = parsed(R"(rules:
  - name: nan
    pattern: 'loss (nan|inf)'
    action: replace
  - name: slow
    pattern: 'took ([0-9.]+) s'
    threshold: '>= 30.5'
    count: 3
    action: stop
  - name: starts
    pattern: begin
    ranks: [0, 3]
    first_within: 300
    every: 0.5
    until: the end
)");
  ASSERT_THAT(file.mistakes, IsEmpty());
  ASSERT_EQ(file.rules.size(), 3u);
  EXPECT_EQ(file.rules[0].action, RuleAction::kReplace);
  EXPECT_EQ(file.rules[0].count, 1u);
  EXPECT_FALSE(file.rules[0].about_time());
  EXPECT_EQ(file.rules[1].threshold->comparison, Comparison::kGreaterEqual);
  EXPECT_EQ(file.rules[1].threshold->limit, 30.5);
  EXPECT_EQ(file.rules[1].count, 3u);
  EXPECT_EQ(file.rules[1].action, RuleAction::kStop);
  EXPECT_EQ(file.rules[2].action, RuleAction::kJournal);
  EXPECT_THAT(*file.rules[2].ranks, ElementsAre(0, 3));
  EXPECT_EQ(file.rules[2].first_within_s, 300);
  EXPECT_EQ(file.rules[2].every_s, 0.5);
  EXPECT_EQ(file.rules[2].until, "the end");
}

TEST(LogRules, all_mistakes_are_listed_each_with_its_line) {
  EXPECT_THAT(
      parsed(R"(rules:
  - name: a
    pattern: '(unclosed'
    action: explode
  - pattern: b
    ranks: [1, 4]
    count: 0
  - name: a
    pattern: c
    patern: d
    every: soon
  - name: e
    pattern: no group
    threshold: '> 1'
  - name: f
    pattern: '(x)'
    threshold: 30
  - name: g
    pattern: 'y'
    every: 3
    count: 2
)")
          .mistakes,
      UnorderedElementsAre(AllOf(StartsWith("rules.yaml:3: "), HasSubstr("'(unclosed'"), HasSubstr("missing )")),
                           AllOf(StartsWith("rules.yaml:4: "), HasSubstr("'explode'; give journal, replace or stop")),
                           AllOf(StartsWith("rules.yaml:5: "), HasSubstr("without 'name'")),
                           AllOf(StartsWith("rules.yaml:6: "), HasSubstr("no rank '4'; ranks are 0 to 3")),
                           AllOf(StartsWith("rules.yaml:7: "), HasSubstr("count is '0'")),
                           AllOf(StartsWith("rules.yaml:8: "), HasSubstr("two rules are named 'a'")),
                           AllOf(StartsWith("rules.yaml:10: "), HasSubstr("no 'patern'; the keys of a rule are")),
                           AllOf(StartsWith("rules.yaml:11: "), HasSubstr("every is 'soon'")),
                           AllOf(StartsWith("rules.yaml:12: "), HasSubstr("threshold needs a group")),
                           AllOf(StartsWith("rules.yaml:17: "), HasSubstr("threshold is '30'")),
                           AllOf(StartsWith("rules.yaml:18: "), HasSubstr("count does not go with"))));
}

TEST(LogRules, what_is_no_list_of_rules_is_said) {
  EXPECT_THAT(parsed("").mistakes, ElementsAre(HasSubstr("one list under the key `rules`")));
  EXPECT_THAT(parsed("- a\n- b\n").mistakes, ElementsAre(HasSubstr("one list under the key `rules`")));
  EXPECT_THAT(parsed("rules: []\n").mistakes, ElementsAre(HasSubstr("0 rules")));
  EXPECT_THAT(parsed("rules:\n  - 7\n").mistakes, ElementsAre(StartsWith("rules.yaml:2: a rule is a map")));
  EXPECT_THAT(parsed("rules:\n  - {a: [}\n").mistakes, ElementsAre(StartsWith("rules.yaml:2: ")));
  EXPECT_THAT(parsed(std::string(kMaxLogRulesBytes + 1, '#')).mistakes, ElementsAre(HasSubstr("is the most")));
}

TEST(LogRules, a_threshold_compares_and_a_nan_breaks_every_one) {
  EXPECT_TRUE((Threshold{Comparison::kLess, 2}.broken_by(1.5)));
  EXPECT_FALSE((Threshold{Comparison::kLess, 2}.broken_by(2)));
  EXPECT_TRUE((Threshold{Comparison::kLessEqual, 2}.broken_by(2)));
  EXPECT_TRUE((Threshold{Comparison::kGreater, 2}.broken_by(INFINITY)));
  EXPECT_FALSE((Threshold{Comparison::kGreater, 2}.broken_by(2)));
  EXPECT_TRUE((Threshold{Comparison::kGreaterEqual, 2}.broken_by(2)));
  EXPECT_TRUE((Threshold{Comparison::kLess, 2}.broken_by(NAN)));
  EXPECT_TRUE((Threshold{Comparison::kGreater, 2}.broken_by(NAN)));
}

}  // namespace
}  // namespace keepstep::agent
