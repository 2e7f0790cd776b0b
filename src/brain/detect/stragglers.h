// Decides which ranks limp: they compute longer than the others, who wait for them in every step. Nothing follows from
// it but words (docs/design/stragglers.md). Pure.
//
// Each agent keeps a StepWindow over its own ranks and gives medians of it now and then; one agent has the
// StragglerDetector and hears the medians of all. Medians, and several windows in a row: one slow step, a checkpoint,
// or an evaluation every hundred steps makes nobody a straggler. And even a straggler's quick steps are slower than the
// others' ordinary ones: on a busy machine, which holds up now this rank, now that one, they are not.
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
  static constexpr size_t kLeastSteps = 10;                    // of every rank, in a window
  static constexpr Time kLeastTime = std::chrono::seconds(1);  // of a window
  static constexpr size_t kMaxSteps = 1024;                    // the newest, of every rank

  // `rank` committed a step of `identity` at `at`, by the clock of its machine. What is older than the newest identity
  // is left out.
  void add(const Identity& identity, Rank rank, Time computed, Time at);

  // The pace of `ranks`, in their order, once a window is full: all of them committed enough steps in it. Begins the
  // next one then. `now`: of the same clock.
  std::optional<std::vector<RankPace>> take(const std::vector<Rank>& ranks, Time now);
  const Identity& identity() const { return identity_; }

 private:
  struct Track {
    std::vector<Time> computed;
    std::vector<Time> steps;
    size_t next = 0;  // which of them is the oldest, once there are kMaxSteps
    Time last{};      // commit
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
  int windows = 3;      // in a row until it is named
  int end_windows = 2;  // in a row until it is no more
};

// A rank is slow from now on, or no longer.
struct StragglerNews {
  Rank rank = 0;
  bool slow = true;
  Time computed{};   // a step, its own
  Time others{};     // the median of the others
  Time step{};       // of all
  double share = 0;  // of the step, lost to it: computed - others
  bool operator==(const StragglerNews&) const = default;
};

class StragglerDetector {
 public:
  explicit StragglerDetector(StragglerLimits limits = {}) : limits_(limits) {}

  // The pace of some ranks of a world of `world`; judges once it has new ones of all. What is older than the newest
  // identity is left out; a newer one begins anew, and who was named stays so until it is judged again.
  std::vector<StragglerNews> step(const Identity& identity, uint32_t world, const std::vector<RankPace>& paces);

  // Who is named, with the newest figures, by rank.
  const std::map<Rank, StragglerNews>& named() const { return named_; }

 private:
  StragglerNews measure(const std::vector<RankPace>& sorted, const RankPace& rank, Time step) const;
  std::vector<StragglerNews> judge();

  const StragglerLimits limits_;
  Identity identity_;
  uint32_t world_ = 0;
  std::map<Rank, RankPace> paces_;  // of this round
  std::map<Rank, int> streaks_;     // windows in a row that speak for a change
  std::map<Rank, StragglerNews> named_;
};

}  // namespace keepstep::brain
