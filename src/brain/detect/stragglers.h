// Decides which ranks are slow: they compute longer than the others, which wait for them in every step. The only
// consequence is a report (docs/design/stragglers.md). Pure.
//
// Each agent keeps a StepWindow over its own ranks and passes on medians from time to time. One agent has the
// StragglerDetector and receives the medians of all. It takes medians over several consecutive windows, so one slow
// step, a checkpoint, or an evaluation every hundred steps makes nobody a straggler. Also, even a straggler's quick
// steps are slower than the others' ordinary ones. That is not so on a busy machine, which holds up one rank now and
// another one later.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// Of one rank over a window of steps.
struct RankPace {
  Rank rank = 0;
  Time computed{};  // from one commit to the next, without waiting for others: the median,
  Time quick{};     // and the tenth percentile
  Time step{};      // from one commit to the next: the median
  bool operator==(const RankPace&) const = default;
};

// The newest steps of the ranks of one node. One thread.
class StepWindow {
 public:
  static constexpr size_t kLeastSteps = 10;                    // per rank and window
  static constexpr Time kLeastTime = std::chrono::seconds(1);  // per window
  static constexpr size_t kMaxSteps = 1024;                    // the newest ones, per rank

  // `rank` committed a step of `identity` at `at`, by the clock of its machine. Ignored if older than the newest
  // identity.
  void add(const Identity& identity, Rank rank, Time computed, Time at);

  // The pace of `ranks`, in their order, once a window is full: all of them committed enough steps in it. Then starts
  // the next window. `now`: by the same clock.
  std::optional<std::vector<RankPace>> take(const std::vector<Rank>& ranks, Time now);
  const Identity& identity() const { return identity_; }

 private:
  struct Track {
    std::vector<Time> computed;
    std::vector<Time> steps;
    size_t next = 0;  // the oldest of them, once there are kMaxSteps
    Time last{};      // the last commit
  };
  Identity identity_;
  std::map<Rank, Track> tracks_;
  Time since_{};
};

struct StragglerLimits {
  double factor = 1.25;  // of the others' time: above it a rank is slow ...
  double share = 0.10;   // ... if this share of the step is lost to it, and its quick steps are slower than theirs
  double end_factor = 1.15;
  double end_share = 0.05;
  int windows = 3;      // in a row before it is named
  int end_windows = 2;  // in a row before it is cleared
};

// A rank is slow from now on, or no longer slow.
struct StragglerNews {
  Rank rank = 0;
  bool slow = true;
  Time computed{};   // its own time per step
  Time others{};     // the median of the others
  Time step{};       // of all ranks
  double share = 0;  // of the step, lost to this rank: computed - others
  bool operator==(const StragglerNews&) const = default;
};

class StragglerDetector {
 public:
  explicit StragglerDetector(StragglerLimits limits = {}) : limits_(limits) {}

  // Takes the pace of some ranks of a world of `world`; judges once it has new ones of all ranks. Ignores what is older
  // than the newest identity; a newer one starts over, and named ranks stay named until they are judged again.
  std::vector<StragglerNews> step(const Identity& identity, uint32_t world, const std::vector<RankPace>& paces);

  // The ranks that are named, with the newest figures, sorted by rank.
  const std::map<Rank, StragglerNews>& named() const { return named_; }

 private:
  StragglerNews measure(const std::vector<RankPace>& sorted, const RankPace& rank, Time step) const;
  std::vector<StragglerNews> judge();

  const StragglerLimits limits_;
  Identity identity_;
  uint32_t world_ = 0;
  std::map<Rank, RankPace> paces_;  // of this round
  std::map<Rank, int> streaks_;     // windows in a row that argue for a change
  std::map<Rank, StragglerNews> named_;
};

}  // namespace keepstep::brain
