// Decides which rank hangs (docs/design/hangs.md). Pure.
//
// The culprit is the rank that did not arrive, not one that waits: a rank is suspected only while others wait for it,
// it waits for nobody, and no rank moves. How long that may last is learned from the run. The limit is half a second
// plus twice the longer of two times: that of a step, and what the others needed since the suspect's last sign of life.
// So a hang is found within three steps plus a second, while a section that all ranks enter alike may take any time. If
// all ranks wait, those that got least far are named. A stopped process (SIGSTOP) is reported at once.
//
// Time in which others wait counts only while it is watched: a gap between two samples (the agent was stopped, the
// machine slept) counts as kLongestGap, and time in which the suspect got no CPU does not count. What the others needed
// counts in full, up to kPause per gap: an agent that looks late must not underestimate their time.
//
// One detector per agent and job; single-threaded.
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
  // Outside the loop over steps, and in the first steps of a generation, it is not known how long things take.
  Time first_limit = std::chrono::seconds(600);  // ... until steps have been learned from
  Time again_limit = std::chrono::seconds(60);   // ... in the first steps of a later generation
  // Ranks on several nodes that all wait for each other may do so because a link between two nodes lets nothing
  // through. The ranks find that out themselves and report the link, in less time than this, whatever `fixed` is.
  Time link_limit = std::chrono::seconds(30);
};

struct Suspicion {
  RankProgress culprit;
  bool stopped = false;           // its process is stopped; nothing below is meaningful then
  Time waited{};                  // how long all others have waited, without anyone moving
  Time limit{};                   // the limit that was exceeded
  Time idle{};                    // since the culprit last moved, at least `waited`
  std::optional<Time> step_time;  // learned; std::nullopt if not known yet
  std::vector<Rank> waiting;      // the ranks that wait
  std::string because;            // one sentence
};

class FailureDetector {
 public:
  static constexpr Time kLongestGap = std::chrono::milliseconds(250);
  static constexpr Time kPause = std::chrono::seconds(1);  // a longer gap means that somebody paused the agent

  explicit FailureDetector(HangConfig config) : config_(config) {}

  // Takes one sample, a few times a second; `now` never goes back. Suspects each rank at most once in a generation.
  // A sample without ranks, before the first generation, shows that none of its steps was committed by then.
  std::vector<Suspicion> step(const ProgressSample& sample, Time now);

  // The 90th percentile of the newest steps; std::nullopt until there are enough.
  std::optional<Time> step_time() const;
  // How long no rank sampled here has moved, if all of them wait: then the rank they wait for may be on another node.
  // std::nullopt if a rank moved or computes.
  std::optional<Time> all_wait_for() const { return all_wait_for_; }
  // How long `rank` has not moved.
  Time still_for(Rank rank) const;

 private:
  struct Track {
    RankProgress last;
    Time moved_at{};        // on the watched clock
    Time moved_full{};      // the same, on the clock that counts gaps in full
    Time starved_before{};  // `starved` when it last moved
    int stopped_in_a_row = 0;
    bool reported = false;
  };

  // `before`: the last look at another generation, if there was one.
  void enter(const ProgressSample& sample, std::optional<Time> before);
  void follow(const RankProgress& rank);
  void learn(const RankProgress& rank);
  void add_steps(Version count, Time took);
  void find_stopped(const ProgressSample& sample, std::vector<Suspicion>& found);
  void find_missing(const ProgressSample& sample, std::vector<Suspicion>& found);
  void find_stuck_together(const std::vector<const RankProgress*>& waiters, Time last_move,
                           std::vector<Suspicion>& found);
  // Everything but the reason; marks the rank as reported.
  Suspicion suspect(const RankProgress& culprit, Track& track, Time waited, Time limit,
                    std::vector<Rank> waiting) const;
  bool starting(const RankProgress& rank) const;
  Time limit_for(const RankProgress& rank, Time needed, bool most_are_away) const;

  HangConfig config_;
  Identity identity_;
  bool entered_ = false;
  std::map<Rank, Track> tracks_;
  Time last_{};     // of the last sample
  Time watched_{};  // this clock stops in gaps
  Time full_{};     // this clock runs on in gaps, up to kPause
  std::optional<Time> all_wait_for_;

  std::deque<Time> steps_;      // newest last
  Version first_commit_ = 0;    // of the generation: its version when it was prepared
  Version learned_commit_ = 0;  // of this generation; 0: none yet
  Time learned_at_{};
  std::optional<Time> without_commit_at_;  // the last look that saw no commit of this generation
};

}  // namespace keepstep::brain
