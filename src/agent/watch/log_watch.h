// Applies log rules (log_rules.h) to what the ranks print, and reports which rule was broken and by which rank.
//
// Pure except for its lock: time is passed in, it reads nothing from the OS, and it only reports. The pump's thread
// passes in lines; the agent's loop passes in which worker has which rank, and fetches the findings. Only lines of
// workers with a rank are checked.
//
// RE2, because lines are whatever a program prints and patterns are the user's: it takes time linear in the line, while
// a backtracking matcher (std::regex) may never end, or use up the stack. Only the first 4 KiB of a line are matched.
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
inline constexpr int64_t kQuietNs = 10'000'000'000;  // between findings of a journal-only rule, per rank
// If take() was not called for this long, the launcher did not run (it was stopped), and did not read what was printed.
inline constexpr int64_t kMissedNs = 5'000'000'000;

struct LogFinding {
  std::string rule;
  RuleAction action = RuleAction::kJournal;
  brain::WorkerId worker = brain::kNoWorker;
  brain::Rank rank = 0;
  std::string what;      // a sentence that leaves out the rank
  uint64_t repeats = 0;  // findings of the same kind left out since the last one
};

class LogWatch {
 public:
  // `rules`: parsed without mistakes.
  explicit LogWatch(const std::vector<LogRule>& rules);
  ~LogWatch();

  // `worker` has `rank` from now on. The time limit for its first line starts with the first call; a recovery restarts
  // `every`.
  void assigned(brain::WorkerId worker, brain::Rank rank, int64_t now_ns);
  // It is dead, or its part is done: no more lines are expected from it. Lines on their way still count, so its state
  // (some bytes per rule) is kept until the job ends.
  void ended(brain::WorkerId worker);
  // Lines that `worker` printed, with or without a final newline. Any thread.
  void lines(brain::WorkerId worker, std::string_view text, int64_t now_ns);
  // Returns what was found since the last call, in order; also checks the time limits. After a finding with action
  // replace or stop, its worker is no longer checked.
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
