// Rules about what workers print (`keepstep run --log-rules FILE`): the values, and reading them from YAML.
//
//   rules:
//     - name: nan                    # for messages and the journal
//       pattern: 'loss (nan|inf)'    # RE2, searched for in each line
//       action: replace              # journal (default), replace (the rank's process), stop (the job)
//     - name: slow
//       pattern: 'step \d+ took ([0-9.]+) s'
//       threshold: '> 30'            # compares the pattern's first group, a number
//       count: 3                     # in a row
//     - name: starts
//       pattern: 'data is there'
//       ranks: [0]                   # whose lines; default: all ranks
//       first_within: 300            # seconds after the process got its rank
//       every: 60                    # seconds, from the first match on
//       until: 'training ends'       # from this line on the rule no longer applies to the process
//
// A rule without threshold, first_within and every is broken by each `count`th line that matches. log_watch.h applies
// the rules; docs/reference/log_rules.md is the user's page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keepstep::agent {

enum class RuleAction { kJournal, kReplace, kStop };
enum class Comparison { kLess, kLessEqual, kGreater, kGreaterEqual };

struct Threshold {
  Comparison comparison = Comparison::kGreater;
  double limit = 0;
  // Whether the rule is broken. NaN breaks it: a rule that watches a loss should report a NaN.
  bool broken_by(double value) const;
};

struct LogRule {
  std::string name;
  std::string pattern;
  std::string until;                           // empty: no end
  std::optional<std::vector<uint32_t>> ranks;  // unset: all
  double first_within_s = 0;                   // 0: no such limit
  double every_s = 0;                          // 0: no such limit
  std::optional<Threshold> threshold;
  uint32_t count = 1;
  RuleAction action = RuleAction::kJournal;

  bool about_time() const { return first_within_s > 0 || every_s > 0; }
};

inline constexpr size_t kMaxLogRules = 256;
inline constexpr size_t kMaxLogRulesBytes = 1 << 20;  // of the file

struct ParsedLogRules {
  std::vector<LogRule> rules;
  std::vector<std::string> mistakes;  // all, each "FILE:LINE: what, and what to do"; if any, use no rule
};

// `file`: the file's name, for the mistakes. `world`: the number of ranks. Pure.
ParsedLogRules parse_log_rules(const std::string& text, const std::string& file, uint32_t world);

}  // namespace keepstep::agent
