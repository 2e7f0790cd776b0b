// Decides which rank hangs (docs/design/hangs.md). Pure.
//
// The culprit is who did not arrive, not who waits: a rank is suspected only while others wait for it, it waits for
// nobody, and no rank moves. How long that may last is learned from the run: the limit is twice the longer of a step
// and of what the others needed since the suspect's last sign of life, plus half a second. So a hang is found within
// three steps and a second, and a section that all ranks enter alike may take as long as it likes. If all ranks wait,
// those that came least far are named. A stopped process (SIGSTOP) is told at once.
//
// Time in which others wait counts only while it is watched: a gap between two samples (the agent was stopped, the
// machine slept) counts as kLongestGap, and time in which the suspect was given no CPU does not count. What the others
// needed counts in full, up to kPause a gap: an agent that looks late must not take their time for shorter than it was.
//
// One detector per agent and job; one thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brain/detect/progress.h"
#include "brain/types.h"

namespace keepstep::brain {

enum class HangMode : uint8_t { kOff, kAuto, kFixed };

struct HangConfig {
  HangMode mode = HangMode::kAuto;
  Time fixed{};  // kFixed: how long others may wait, whatever a step takes
  // Outside of the loop over steps, and in the first steps of a generation, nothing is known of how long things take.
  Time first_limit = std::chrono::seconds(600);  // ... as long as no steps were learned from
  Time again_limit = std::chrono::seconds(60);   // ... in the first steps of a later generation
  // Ranks of several nodes that all wait for each other may do so because a link between two of them lets nothing
  // through. The ranks find that out themselves and say which link it is, in less than this, whatever `fixed` is.
  Time link_limit = std::chrono::seconds(30);
};

struct Suspicion {
  RankProgress culprit;
  bool stopped = false;           // its process is stopped; nothing below counts then
  Time waited{};                  // how long all others have waited, without anyone moving
  Time limit{};                   // what was too long
  Time idle{};                    // since the culprit moved last, at least `waited`
  std::optional<Time> step_time;  // learned; nothing: not yet
  std::vector<Rank> waiting;      // who waits
  std::string because;            // one sentence
};

class FailureDetector {
 public:
  static constexpr Time kLongestGap = std::chrono::milliseconds(250);
  static constexpr Time kPause = std::chrono::seconds(1);  // somebody paused the agent

  explicit FailureDetector(HangConfig config) : config_(config) {}

  // One sample, a few times a second; `now` never goes back. Each rank is suspected at most once in a generation.
  std::vector<Suspicion> step(const ProgressSample& sample, Time now);

  // The 90th percentile of the newest steps; nothing before there are enough.
  std::optional<Time> step_time() const;
  // How long no rank sampled here has moved, if all of those wait: then other nodes may have who they wait for.
  // Nothing: somebody moved, or computes.
  std::optional<Time> all_wait_for() const { return all_wait_for_; }
  // How long `rank` has not moved.
  Time still_for(Rank rank) const;

 private:
  struct Track {
    RankProgress last;
    Time moved_at{};        // on the watched clock
    Time moved_full{};      // the same on the clock of full gaps
    Time starved_before{};  // `starved` when it moved last
    int stopped_in_a_row = 0;
    bool reported = false;
  };

  void enter(const ProgressSample& sample);
  void follow(const RankProgress& rank);
  void learn(const RankProgress& rank);
  void add_steps(Version count, Time took);
  void find_stopped(const ProgressSample& sample, std::vector<Suspicion>& found);
  void find_missing(const ProgressSample& sample, std::vector<Suspicion>& found);
  void find_stuck_together(const std::vector<const RankProgress*>& waiters, Time last_move,
                           std::vector<Suspicion>& found);
  // All but the reason; marks it as reported.
  Suspicion suspect(const RankProgress& culprit, Track& track, Time waited, Time limit,
                    std::vector<Rank> waiting) const;
  bool starting(const RankProgress& rank) const;
  Time limit_for(const RankProgress& rank, Time needed, bool most_are_away) const;

  HangConfig config_;
  Identity identity_;
  bool entered_ = false;
  std::map<Rank, Track> tracks_;
  Time last_{};     // of the last sample
  Time watched_{};  // the clock that stands still in gaps
  Time full_{};     // the clock that goes on in gaps up to kPause
  std::optional<Time> all_wait_for_;

  std::deque<Time> steps_;      // newest last
  Version first_commit_ = 0;    // of the generation: its version when it was prepared
  Version learned_commit_ = 0;  // of this generation; 0: none yet
  Time learned_at_{};
  std::optional<Time> without_commit_at_;  // the last look at this generation that saw none
};

}  // namespace keepstep::brain
