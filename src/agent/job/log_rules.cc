#include "agent/job/log_rules.h"

#include <re2/re2.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace keepstep::agent {
namespace {

constexpr double kMaxSeconds = 30 * 24 * 3600.0;
constexpr uint32_t kMaxCount = 1'000'000;
constexpr const char* kKeys = "name, pattern, action, ranks, count, threshold, first_within, every, until";

std::optional<Threshold> threshold_of(const std::string& text) {
  constexpr std::pair<const char*, Comparison> kComparisons[] = {{"<=", Comparison::kLessEqual},
                                                                 {">=", Comparison::kGreaterEqual},
                                                                 {"<", Comparison::kLess},
                                                                 {">", Comparison::kGreater}};
  for (const auto& [sign, comparison] : kComparisons) {
    if (text.starts_with(sign)) {
      Threshold threshold{comparison, 0};
      if (absl::SimpleAtod(text.substr(std::strlen(sign)), &threshold.limit) && std::isfinite(threshold.limit)) {
        return threshold;
      }
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Reads a file once: each method takes what is right and lists what is wrong.
class RulesParser {
 public:
  RulesParser(std::string file, uint32_t world) : file_(std::move(file)), world_(world) {}

  ParsedLogRules read(const std::string& text) {
    try {
      const YAML::Node root = YAML::Load(text);
      const YAML::Node rules = root.IsMap() ? root["rules"] : YAML::Node();
      if (!rules.IsDefined() || !rules.IsSequence() || root.size() != 1) {
        mistake(root, "the file is one list under the key `rules`, each with a name, a pattern and an action");
      } else if (rules.size() == 0 || rules.size() > kMaxLogRules) {
        mistake(rules, absl::StrFormat("%d rules; give 1 to %d", rules.size(), kMaxLogRules));
      } else {
        for (const YAML::Node& node : rules) {
          rule(node);
        }
      }
    } catch (const YAML::Exception& error) {
      mistake_at(error.mark, error.msg);
    }
    return std::move(parsed_);
  }

 private:
  void mistake_at(const YAML::Mark& mark, const std::string& what) {
    // The mark of something absent from the file has no line.
    parsed_.mistakes.push_back(absl::StrFormat("%s:%d: %s", file_, mark.is_null() ? 1 : mark.line + 1, what));
  }
  void mistake(const YAML::Node& node, const std::string& what) { mistake_at(node.Mark(), what); }

  void rule(const YAML::Node& node) {
    if (!node.IsMap()) {
      mistake(node, absl::StrFormat("a rule is a map; its keys are %s", kKeys));
      return;
    }
    LogRule rule;
    std::set<std::string> seen;
    const size_t before = parsed_.mistakes.size();
    for (const auto& entry : node) {
      const std::string key = entry.first.Scalar();
      if (!seen.insert(key).second) {
        mistake(entry.first, absl::StrFormat("'%s' is there twice in one rule", key));
      } else {
        take(key, entry.first, entry.second, rule);
      }
    }
    for (const char* needed : {"name", "pattern"}) {
      if (!seen.contains(needed)) {
        mistake(node, absl::StrFormat("a rule without '%s'", needed));
      }
    }
    if (parsed_.mistakes.size() == before) {
      together(node, rule);
    }
    parsed_.rules.push_back(std::move(rule));
  }

  void take(const std::string& key, const YAML::Node& at, const YAML::Node& value, LogRule& rule) {
    if (key == "ranks") {
      ranks(value, rule);
      return;
    }
    if (!value.IsScalar()) {
      mistake(value, absl::StrFormat("'%s' is one value", key));
      return;
    }
    const std::string& text = value.Scalar();
    if (key == "name") {
      name(value, text, rule);
    } else if (key == "pattern") {
      rule.pattern = pattern(value, text);
    } else if (key == "until") {
      rule.until = pattern(value, text);
    } else if (key == "action") {
      action(value, text, rule);
    } else if (key == "count") {
      if (!absl::SimpleAtoi(text, &rule.count) || rule.count < 1 || rule.count > kMaxCount) {
        mistake(value, absl::StrFormat("count is '%s'; give a number from 1 to %d", text, kMaxCount));
      }
    } else if (key == "threshold") {
      rule.threshold = threshold_of(text);
      if (!rule.threshold) {
        mistake(value, absl::StrFormat("threshold is '%s'; give <, <=, > or >= and a number, in quotes: '> 30'", text));
      }
    } else if (key == "first_within" || key == "every") {
      double& seconds = key == "every" ? rule.every_s : rule.first_within_s;
      if (!absl::SimpleAtod(text, &seconds) || !(seconds > 0) || seconds > kMaxSeconds) {
        mistake(value, absl::StrFormat("%s is '%s'; give seconds above 0 and at most %g", key, text, kMaxSeconds));
      }
    } else {
      mistake(at, absl::StrFormat("there is no '%s'; the keys of a rule are %s", key, kKeys));
    }
  }

  void name(const YAML::Node& at, const std::string& text, LogRule& rule) {
    rule.name = text;
    if (text.empty() || text.size() > 100) {
      mistake(at, "a name has 1 to 100 characters");
    } else if (!names_.insert(text).second) {
      mistake(at, absl::StrFormat("two rules are named '%s'", text));
    }
  }

  std::string pattern(const YAML::Node& at, const std::string& text) {
    const RE2 re(text, RE2::Quiet);
    if (text.empty()) {
      mistake(at, "the pattern is empty: it would match every line");
    } else if (!re.ok()) {
      mistake(at, absl::StrFormat("the pattern '%s' is no regular expression (RE2): %s", text, re.error()));
    }
    return text;
  }

  void action(const YAML::Node& at, const std::string& text, LogRule& rule) {
    if (text == "journal") {
      rule.action = RuleAction::kJournal;
    } else if (text == "replace") {
      rule.action = RuleAction::kReplace;
    } else if (text == "stop") {
      rule.action = RuleAction::kStop;
    } else {
      mistake(at, absl::StrFormat("action is '%s'; give journal, replace or stop", text));
    }
  }

  void ranks(const YAML::Node& value, LogRule& rule) {
    rule.ranks.emplace();
    if (!value.IsSequence() || value.size() == 0) {
      mistake(value, "ranks is a list of numbers, as in [0, 2]; leave it out for all");
      return;
    }
    for (const YAML::Node& one : value) {
      uint32_t rank = 0;
      if (!one.IsScalar() || !absl::SimpleAtoi(one.Scalar(), &rank) || rank >= world_) {
        mistake(one, absl::StrFormat("there is no rank '%s'; ranks are 0 to %d", one.IsScalar() ? one.Scalar() : "...",
                                     world_ - 1));
        continue;
      }
      rule.ranks->push_back(rank);
    }
  }

  // Mistakes that single values do not show.
  void together(const YAML::Node& at, const LogRule& rule) {
    if (rule.threshold && rule.about_time()) {
      mistake(at, "threshold does not go with first_within or every; make two rules");
    }
    if (rule.about_time() && rule.count > 1) {
      mistake(at, "count does not go with first_within or every; one line is enough for them");
    }
    if (rule.threshold && RE2(rule.pattern, RE2::Quiet).NumberOfCapturingGroups() < 1) {
      mistake(at, "threshold needs a group in the pattern that holds the number, as in 'loss ([0-9.e+-]+|nan|inf)'");
    }
  }

  std::string file_;
  uint32_t world_;
  std::set<std::string> names_;
  ParsedLogRules parsed_;
};

}  // namespace

bool Threshold::broken_by(double value) const {
  if (std::isnan(value)) {
    return true;
  }
  switch (comparison) {
    case Comparison::kLess:
      return value < limit;
    case Comparison::kLessEqual:
      return value <= limit;
    case Comparison::kGreater:
      return value > limit;
    default:
      return value >= limit;
  }
}

ParsedLogRules parse_log_rules(const std::string& text, const std::string& file, uint32_t world) {
  if (text.size() > kMaxLogRulesBytes) {
    return {{}, {absl::StrFormat("%s:1: the file has %d bytes, %d is the most", file, text.size(), kMaxLogRulesBytes)}};
  }
  return RulesParser(file, world).read(text);
}

}  // namespace keepstep::agent
