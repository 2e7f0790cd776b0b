// Saves that outlive their ranks: all ranks die at any instant, saves complete at any later one, and the news takes its
// time. A start continues from a stored state that belongs to the history it continues, and from the newest such state
// that it has heard of.
//   KEEPSTEP_SEED=41 keepstep_brain_test --gtest_filter='*SavesOfTheDead*'

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "brain/membership/membership.h"
#include "brain/simulation.h"

namespace keepstep::brain::simulation {
namespace {

constexpr int kTurns = 400;

class Saves {
 public:
  explicit Saves(uint64_t seed) : random_(seed) {
    config_.world_size = 2;
    config_.spares = below(2) == 0 ? 0 : 2;
    config_.ladder = LadderConfig{100000, 100000, 100000, 100000, 100000};
    config_.start_failures = 100000;
    config_.repeat_after = std::chrono::hours(1);
    brain_ = std::make_unique<Membership>(config_);
  }

  void run() {
    feed(NodeJoined{0, {ipv4(10, 0, 0, 0), 20000}});
    for (int turn = 0; turn < kTurns; ++turn) {
      switch (below(6)) {
        case 0:
          begin_something();
          break;
        case 1:
        case 2:
          take_a_step();
          break;
        case 3:
          complete_a_save();
          break;
        case 4:
          deliver_news();
          break;
        default:
          if (below(6) == 0) {
            kill_all();
          }
      }
    }
  }

  std::map<std::string, uint64_t> paths;

 private:
  struct Save {
    Version version = 0;
    uint32_t generation = 0;
    uint64_t content = 0;
  };

  uint64_t below(uint64_t bound) { return random_() % bound; }

  void feed(const Event& event) {
    for (const Effect& effect : brain_->step(event, Time{})) {
      if (const auto* spawned = std::get_if<Spawn>(&effect)) {
        starting_.push_back(spawned->worker);
      } else if (const auto* prepare = std::get_if<Prepare>(&effect)) {
        on(*prepare);
      } else if (const auto* activate = std::get_if<Activate>(&effect)) {
        activated_ = activate->identity;
      } else if (const auto* journal = std::get_if<Journal>(&effect); journal != nullptr) {
        ++paths[journal->event];
      } else {
        must(!std::holds_alternative<EndJob>(effect), "the job ended");
      }
    }
  }

  void on(const Prepare& prepare) {
    const Version version = prepare.version;
    if (version > 0) {
      must(history_.contains(version), "it begins at a step that was never done");
      must(storage_.contains(version), "it begins at a step that was not saved, or whose save was taken away");
      must(storage_.at(version) == history_.at(version), "it begins with the state of another history");
    }
    for (const auto& [heard, content] : heard_) {
      const auto there = storage_.find(heard);
      const bool is_ours = history_.contains(heard) && history_.at(heard) == content;
      must(!is_ours || there == storage_.end() || there->second != content || version >= heard,
           "it begins below a step whose save it had heard of");
    }
    history_.erase(history_.upper_bound(version), history_.end());
    prepared_ = prepare;
    ready_ = 0;
    // Rank 0's process gives up or removes what is above.
    std::erase_if(under_way_, [&](const Save& save) { return save.version > version; });
    storage_.erase(storage_.upper_bound(version), storage_.end());
  }

  // Called when a process parks or is ready.
  void begin_something() {
    if (!starting_.empty()) {
      const auto which = starting_.begin() + static_cast<std::ptrdiff_t>(below(starting_.size()));
      const WorkerId worker = *which;
      starting_.erase(which);
      feed(WorkerRecoverable{worker});
      feed(WorkerParked{worker, 100 + int64_t{worker}});
    } else if (prepared_ && ready_ < prepared_->members.size()) {
      const Prepare prepare = *prepared_;
      feed(Ready{prepare.identity, {{prepare.members[ready_++].worker, {}}}});
      if (activated_ == prepare.identity) {
        feed(Formed{prepare.identity});
      }
    }
  }

  bool runs() const { return prepared_ && activated_ == prepared_->identity; }

  void take_a_step() {
    if (!runs()) {
      return;
    }
    const Version before = history_.empty() ? 0 : history_.rbegin()->first;
    const uint64_t content = before == 0 ? 0 : history_.at(before);
    history_[before + 1] = content * 1'000'003 + prepared_->identity.generation * 1009 + before;
    if (below(3) != 0) {  // otherwise nobody hears of it
      feed(Progress{prepared_->identity, before + 1});
    }
    if (below(3) == 0) {
      under_way_.push_back({before + 1, prepared_->identity.generation, history_.at(before + 1)});
    }
  }

  void complete_a_save() {
    if (under_way_.empty()) {
      return;
    }
    const auto which = under_way_.begin() + static_cast<std::ptrdiff_t>(below(under_way_.size()));
    storage_[which->version] = which->content;
    news_.push_back(*which);
    under_way_.erase(which);
  }

  void deliver_news() {
    if (news_.empty()) {
      return;
    }
    const auto which = news_.begin() + static_cast<std::ptrdiff_t>(below(news_.size()));
    const Save save = *which;
    news_.erase(which);
    heard_[save.version] = save.content;
    feed(Saved{save.version, save.generation});
  }

  void kill_all() {
    if (!runs()) {
      return;
    }
    const std::vector<Member> members = prepared_->members;
    prepared_.reset();
    for (const Member& member : members) {
      feed(WorkerDied{member.worker, 100 + int64_t{member.worker}, 9, 0, "pidfd", ""});
    }
  }

  std::mt19937_64 random_;
  MembershipConfig config_;
  std::unique_ptr<Membership> brain_;
  std::vector<WorkerId> starting_;
  std::optional<Prepare> prepared_;
  size_t ready_ = 0;
  Identity activated_;
  std::map<Version, uint64_t> history_;  // what each step produced, in the surviving history
  std::vector<Save> under_way_;
  std::map<Version, uint64_t> storage_;
  std::vector<Save> news_;
  std::map<Version, uint64_t> heard_;
};

TEST(SavesOfTheDead, a_start_goes_on_from_the_newest_one_that_it_heard_of_and_never_from_another_history) {
  const bool one = std::getenv("KEEPSTEP_SEED") != nullptr;
  const uint64_t first = number_from("KEEPSTEP_SEED", 1);
  const uint64_t schedules = one ? 1 : number_from("KEEPSTEP_SCHEDULES", 1000);
  std::map<std::string, uint64_t> paths;
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    try {
      Saves saves(seed);
      saves.run();
      for (const auto& [path, times] : saves.paths) {
        paths[path] += times;
      }
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\nrepeat it with: KEEPSTEP_SEED=" << seed
             << " keepstep_brain_test --gtest_filter='*SavesOfTheDead*'";
    }
  }
  for (const char* path : {"restart", "activated", "orphan_save"}) {
    RecordProperty(path, std::to_string(paths[path]));
    EXPECT_TRUE(one || paths[path] > 0) << "this path was never taken: " << path;
  }
}

}  // namespace
}  // namespace keepstep::brain::simulation
