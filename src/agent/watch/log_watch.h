// Applies log rules (log_rules.h) to what the ranks print, and says which rule was broken by whom.
//
// Pure but for its lock: time comes in, nothing is read from the OS, and it acts on nothing. The pump's thread brings
// lines, the agent's loop brings who has which rank and asks for the findings. Only lines of workers with a rank count.
//
// RE2, because lines are whatever a program prints and patterns are the user's: it takes time linear in the line,
// where a backtracking matcher (std::regex) may take for ever, or all of the stack. Of a line the first 4 KiB count.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/job/log_rules.h"
#include "brain/types.h"

namespace re2 {
class RE2;
}

namespace keepstep::agent {

inline constexpr size_t kMatchedBytes = 4096;        // of a line
inline constexpr int64_t kQuietNs = 10'000'000'000;  // between two findings of a rule that only journals, per rank
// Whoever was not asked for so long did not run (a stopped launcher): nothing printed meanwhile was read either.
inline constexpr int64_t kMissedNs = 5'000'000'000;

struct LogFinding {
  std::string rule;
  RuleAction action = RuleAction::kJournal;
  brain::WorkerId worker = brain::kNoWorker;
  brain::Rank rank = 0;
  std::string what;      // a sentence without the rank
  uint64_t repeats = 0;  // findings of the same kind left out since the last one
};

class LogWatch {
 public:
  // `rules` were parsed without a mistake.
  explicit LogWatch(const std::vector<LogRule>& rules);
  ~LogWatch();

  // `worker` has `rank` from here on. Its limits for a first line run from the first call; a recovery renews `every`.
  void assigned(brain::WorkerId worker, brain::Rank rank, int64_t now_ns);
  // It is dead, or its part is done: no line is awaited from it any more. Those on their way still count, so it is kept
  // (some bytes a rule) until the job ends.
  void ended(brain::WorkerId worker);
  // Lines that `worker` printed, with or without a newline at the end. Any thread.
  void lines(brain::WorkerId worker, std::string_view text, int64_t now_ns);
  // What was found since the last call, in order; asks the limits of time, too. Once a rule said replace or stop its
  // worker is asked nothing more.
  std::vector<LogFinding> take(int64_t now_ns);

 private:
  struct Rule;
  struct State;  // of one rule for one worker
  struct Worker;

  void line(brain::WorkerId id, Worker& worker, std::string_view line, int64_t now_ns);
  void broken(brain::WorkerId id, Worker& worker, size_t rule, int64_t now_ns, std::string what);

  std::mutex mutex_;
  std::vector<Rule> rules_;
  std::map<brain::WorkerId, Worker> workers_;
  std::vector<LogFinding> findings_;
  std::optional<int64_t> asked_ns_;
};

}  // namespace keepstep::agent
