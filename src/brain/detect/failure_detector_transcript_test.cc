// The failure detector's transcripts: a run, sample by sample, and the ranks it names.
//
//   config mode=auto world=4          a job; ranks start outside the loop
//   generation number=2 version=10    a new membership
//   generation number=2 version=10 committed=4   ... whose first sample, 100 ms later, shows 4 steps
//   steps ms=100 count=20             all ranks commit `count` steps, sampled every 100 ms
//   at rank=0,1 place=compute ...     from now on these ranks are at this place (see `set`)
//   watch ms=2000                     time passes, sampled every 100 ms; reports suspicions
//   watch ms=2000 moving=1,2          ... while these ranks' operations make progress
//   gap ms=60000                      nobody looks for this long
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "brain/detect/failure_detector.h"
#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using std::chrono::milliseconds;
using transcript::Line;
using transcript::numbers;

constexpr milliseconds kLook{100};

class Scene {
 public:
  std::vector<std::string> run(const Line& line) {
    lines_.clear();
    if (line.verb == "config") {
      configure(line);
    } else if (line.verb == "generation") {
      sample_.identity.generation = static_cast<uint32_t>(line.number("number"));
      sample_.version = line.number("version");
      for (RankProgress& rank : sample_.ranks) {
        rank.entered = rank.left = rank.entered_world = rank.messages = 0;
        rank.waits = WaitsIn::kNothing;
      }
      if (line.has("committed")) {
        now_ += kLook;
        commit(line.number("committed"), now_);
      }
      look();
    } else if (line.verb == "steps") {
      steps(milliseconds(line.number("ms")), line.number("count"));
    } else if (line.verb == "at") {
      for (const Rank rank : numbers(line.text("rank"))) {
        set(sample_.ranks.at(rank), line);
      }
      look();
    } else if (line.verb == "gap") {
      now_ += milliseconds(line.number("ms"));
      look();
    } else if (line.verb == "watch") {
      const auto moving = line.has("moving") ? numbers(line.text("moving")) : std::vector<uint32_t>{};
      for (milliseconds passed{}; passed < milliseconds(line.number("ms")); passed += kLook) {
        for (const Rank rank : moving) {
          ++sample_.ranks.at(rank).moved;
        }
        for (RankProgress& rank : sample_.ranks) {
          rank.starved += starved_.contains(rank.rank) ? kLook : milliseconds{};
          if (rank.still_for.has_value()) {
            *rank.still_for += kLook;
          }
        }
        now_ += kLook;
        look();
      }
    } else {
      ADD_FAILURE() << "no such line: " << line.verb;
    }
    return lines_.empty() ? std::vector<std::string>{"(nothing)"} : lines_;
  }

 private:
  void configure(const Line& line) {
    HangConfig config;
    if (line.text("mode") == "off") {
      config.mode = HangMode::kOff;
    } else if (line.has("fixed_ms")) {
      config.mode = HangMode::kFixed;
      config.fixed = milliseconds(line.number("fixed_ms"));
    }
    detector_.emplace(config);
    sample_ = {.identity = {1, 1}, .world = static_cast<uint32_t>(line.number("world")), .trains = true};
    for (Rank rank = 0; rank < line.number("here", sample_.world); ++rank) {
      sample_.ranks.push_back({.rank = rank, .worker = rank});
    }
    starved_.clear();
    look();
  }

  void steps(milliseconds length, uint64_t count) {
    const Time end = now_ + length * count;
    Time next = now_ + length;
    while (now_ < end) {
      now_ = std::min<Time>(now_ + kLook, end);
      for (; next <= now_; next += length) {
        commit(1, next);
      }
      look();
    }
  }

  // All ranks commit `count` steps by `when` and begin the next one.
  void commit(uint64_t count, Time when) {
    for (RankProgress& rank : sample_.ranks) {
      rank.committed += count;
      rank.committed_at = when;
      rank.phase = StepPhase::kMicroBatch;
      rank.step = rank.committed + 1;
      rank.micro_batch = 1;
      rank.entered += 2 * count;
      rank.left = rank.entered;
      rank.entered_world = rank.entered;
      rank.waits = WaitsIn::kNothing;
    }
  }

  void set(RankProgress& rank, const Line& line) {
    const std::string place = line.text("place");
    rank.waits = WaitsIn::kNothing;
    rank.slow = false;
    rank.world = false;
    if (place == "collective" || place == "subgroup") {
      rank.waits = WaitsIn::kCollective;
      rank.what = "all_reduce";
      rank.entered = line.number("number", rank.entered + 1);
      rank.world = place == "collective";
      rank.entered_world += rank.world ? 1 : 0;
      for (const Rank member : line.has("members") ? numbers(line.text("members")) : std::vector<uint32_t>{}) {
        rank.members |= uint64_t{1} << member;
      }
    } else if (place == "vote") {
      rank.waits = WaitsIn::kVote;
    } else if (place == "message") {
      rank.waits = WaitsIn::kMessage;
    } else if (place == "store") {
      rank.waits = WaitsIn::kStore;
    } else if (place == "end") {
      rank.waits = WaitsIn::kEnd;
      rank.phase = StepPhase::kOutside;
      rank.step = 0;
    } else if (place == "pause") {
      rank.waits = WaitsIn::kPause;
      rank.phase = StepPhase::kOutside;
      rank.step = 0;
    } else if (place == "slow") {
      rank.slow = true;
    } else if (place == "outside") {
      rank.phase = StepPhase::kOutside;
      rank.step = 0;
    } else if (place == "update") {
      rank.phase = StepPhase::kUpdate;
    } else if (place == "next_micro_batch") {
      ++rank.micro_batch;
    }
    const std::string process = line.text("process");
    rank.process = process == "stopped"  ? ProcessState::kStopped
                   : process == "traced" ? ProcessState::kTraced
                                         : ProcessState::kRuns;
    if (process == "starved") {
      starved_.insert(rank.rank);
    } else {
      starved_.erase(rank.rank);
    }
    if (line.has("elsewhere_for_ms")) {
      rank.still_for = milliseconds(line.number("elsewhere_for_ms"));
    }
  }

  void look() {
    for (const Suspicion& suspicion : detector_->step(sample_, now_)) {
      lines_.push_back("hangs rank=" + std::to_string(suspicion.culprit.rank) + ": " + suspicion.because);
    }
  }

  std::optional<FailureDetector> detector_;
  ProgressSample sample_;
  Time now_ = std::chrono::seconds(1000);
  std::set<Rank> starved_;
  std::vector<std::string> lines_;
};

TEST(FailureDetectorTranscript, reads_as_recorded) {
  Scene scene;
  EXPECT_EQ(transcript::check("detect/testdata/failure_detector", [&](const Line& line) { return scene.run(line); }),
            "");
}

}  // namespace
}  // namespace keepstep::brain
