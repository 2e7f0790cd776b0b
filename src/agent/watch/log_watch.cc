#include "agent/watch/log_watch.h"

#include <re2/re2.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace keepstep::agent {
namespace {

constexpr size_t kMaxFindings = 1000;  // between two calls of take()
constexpr size_t kQuotedBytes = 200;

int64_t ns_of(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

std::string quoted(std::string_view line) {
  return absl::StrFormat("'%s'%s", absl::Utf8SafeCHexEscape(std::string(line.substr(0, kQuotedBytes))),
                         line.size() > kQuotedBytes ? "..." : "");
}

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct LogWatch::Rule {
  LogRule rule;
  std::unique_ptr<RE2> pattern;
  std::unique_ptr<RE2> until;  // may be null
};

struct LogWatch::State {
  bool done = false;  // no longer checked
  bool seen = false;
  bool missed_first = false;
  int64_t last_ns = 0;  // of a matching line; before one, when the rank began
  uint32_t count = 0;   // in a row
  int64_t quiet_until_ns = std::numeric_limits<int64_t>::min();
  uint64_t repeats = 0;
};

struct LogWatch::Worker {
  brain::Rank rank = 0;
  bool condemned = false;
  bool ended = false;
  std::vector<State> states;  // parallel to rules_
};

LogWatch::LogWatch(const std::vector<LogRule>& rules) {
  for (const LogRule& rule : rules) {
    rules_.push_back({rule, std::make_unique<RE2>(rule.pattern, RE2::Quiet),
                      rule.until.empty() ? nullptr : std::make_unique<RE2>(rule.until, RE2::Quiet)});
  }
}

LogWatch::~LogWatch() = default;

void LogWatch::assigned(brain::WorkerId worker, brain::Rank rank, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const auto [it, inserted] = workers_.try_emplace(worker);
  const bool fresh = std::exchange(it->second.ended, false) || inserted;
  it->second.rank = rank;
  it->second.states.resize(rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    State& state = it->second.states[i];
    const auto& ranks = rules_[i].rule.ranks;
    state.done = state.done || (ranks && std::ranges::find(*ranks, rank) == ranks->end());
    if (fresh || state.seen) {
      state.last_ns = now_ns;
    }
  }
}

void LogWatch::ended(brain::WorkerId worker) {
  const std::lock_guard lock(mutex_);
  if (const auto it = workers_.find(worker); it != workers_.end()) {
    it->second.ended = true;
  }
}

void LogWatch::lines(brain::WorkerId worker, std::string_view text, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(worker);
  if (it == workers_.end()) {
    return;
  }
  while (!text.empty() && !it->second.condemned) {
    const size_t end = std::min(text.find('\n'), text.size());
    line(worker, it->second, text.substr(0, std::min(end, kMatchedBytes)), now_ns);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void LogWatch::line(brain::WorkerId id, Worker& worker, std::string_view line, int64_t now_ns) {
  for (size_t i = 0; i < rules_.size() && !worker.condemned; ++i) {
    const Rule& each = rules_[i];
    State& state = worker.states[i];
    if (state.done) {
      continue;
    }
    re2::StringPiece group;
    const bool matches = each.rule.threshold ? RE2::PartialMatch(piece(line), *each.pattern, &group)
                                             : RE2::PartialMatch(piece(line), *each.pattern);
    if (matches) {
      state.seen = true;
      state.last_ns = now_ns;
      if (each.rule.threshold) {
        double value = 0;
        const bool number = absl::SimpleAtod({group.data(), group.size()}, &value);
        state.count = number && each.rule.threshold->broken_by(value) ? state.count + 1 : 0;
      } else if (!each.rule.about_time()) {
        ++state.count;
      }
      if (state.count >= each.rule.count) {
        state.count = 0;
        broken(id, worker, i, now_ns,
               absl::StrFormat("printed %s%s", quoted(line),
                               each.rule.count == 1 ? "" : absl::StrFormat(", %d such lines", each.rule.count)));
      }
    }
    if (each.until != nullptr && RE2::PartialMatch(piece(line), *each.until)) {
      state.done = true;
    }
  }
}

void LogWatch::broken(brain::WorkerId id, Worker& worker, size_t rule, int64_t now_ns, std::string what) {
  const LogRule& each = rules_[rule].rule;
  State& state = worker.states[rule];
  if (each.action != RuleAction::kJournal) {
    worker.condemned = true;
  } else if (now_ns < state.quiet_until_ns || findings_.size() >= kMaxFindings) {
    ++state.repeats;
    return;
  }
  state.quiet_until_ns = now_ns + kQuietNs;
  findings_.push_back({each.name, each.action, id, worker.rank, std::move(what), std::exchange(state.repeats, 0)});
}

std::vector<LogFinding> LogWatch::take(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t away_ns = asked_ns_ ? now_ns - *asked_ns_ : 0;
  asked_ns_ = now_ns;
  for (auto& [id, worker] : workers_) {
    for (size_t i = 0; i < rules_.size() && !worker.condemned; ++i) {
      const LogRule& rule = rules_[i].rule;
      State& state = worker.states[i];
      if (state.done || worker.ended || !rule.about_time()) {
        continue;
      }
      if (away_ns > kMissedNs) {
        state.last_ns += std::min(away_ns, now_ns - state.last_ns);
      }
      const int64_t silent_ns = now_ns - state.last_ns;
      if (rule.first_within_s > 0 && !state.seen && !state.missed_first && silent_ns > ns_of(rule.first_within_s)) {
        state.missed_first = true;
        broken(id, worker, i, now_ns,
               absl::StrFormat("printed nothing that matches '%s' within %g s", rule.pattern, rule.first_within_s));
      } else if (rule.every_s > 0 && state.seen && silent_ns > ns_of(rule.every_s)) {
        state.last_ns = now_ns;
        broken(id, worker, i, now_ns,
               absl::StrFormat("printed nothing that matches '%s' for %g s", rule.pattern, rule.every_s));
      }
    }
  }
  return std::exchange(findings_, {});
}

}  // namespace keepstep::agent
