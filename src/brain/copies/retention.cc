#include "brain/copies/retention.h"

#include <algorithm>
#include <map>
#include <optional>

namespace keepstep::brain {
namespace {

constexpr Time kLeastSaveLimit = std::chrono::minutes(1);

std::map<Step, StoredCheckpoint> by_step(const std::vector<StoredCheckpoint>& stored) {
  std::map<Step, StoredCheckpoint> merged;
  for (StoredCheckpoint checkpoint : stored) {
    checkpoint.age = std::max(checkpoint.age, Time{});
    const auto [place, is_new] = merged.emplace(checkpoint.step, checkpoint);
    if (!is_new) {
      StoredCheckpoint& known = place->second;
      known.complete |= checkpoint.complete;
      known.pinned |= checkpoint.pinned;
      known.in_use |= checkpoint.in_use;
      known.age = std::min(known.age, checkpoint.age);
    }
  }
  return merged;
}

// "90 s", "45 min", "50 h", "3 days": the largest unit that leaves at least two of it.
std::string in_words(Time time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  if (seconds < 120) {
    return std::to_string(seconds) + " s";
  }
  if (seconds < 2 * 3600) {
    return std::to_string(seconds / 60) + " min";
  }
  return seconds < 2 * 86400 ? std::to_string(seconds / 3600) + " h" : std::to_string(seconds / 86400) + " days";
}

class Judge {
 public:
  Judge(const std::map<Step, StoredCheckpoint>& stored, const RetentionRules& rules)
      : rules_(rules), save_limit_(std::max(rules.save_limit, kLeastSaveLimit)) {
    const StoredCheckpoint* last = nullptr;
    for (const auto& [step, checkpoint] : stored) {
      if (checkpoint.complete) {
        newest_ = step;
        last = last == nullptr || checkpoint.age <= last->age ? &checkpoint : last;
      }
    }
    if (last != nullptr) {
      completed_last_ = last->step;
    }
  }

  // Must be called from the newest step to the oldest, once each.
  std::optional<Removal> judge(const StoredCheckpoint& checkpoint) {
    const bool held = checkpoint.pinned || checkpoint.in_use;
    if (!checkpoint.complete) {
      if (held || checkpoint.age <= save_limit_) {
        return std::nullopt;
      }
      return removal(checkpoint, RemovedFor::kIncomplete);
    }
    const bool beyond_count = rules_.keep != 0 && newer_complete_++ >= rules_.keep;
    const bool too_old = rules_.max_age > Time{} && checkpoint.age > rules_.max_age;
    const bool stays = held || checkpoint.step == newest_ || checkpoint.step == completed_last_ ||
                       (rules_.keep_every != 0 && checkpoint.step % rules_.keep_every == 0);
    if (stays || (!beyond_count && !too_old)) {
      return std::nullopt;
    }
    return removal(checkpoint, beyond_count ? RemovedFor::kCount : RemovedFor::kAge);
  }

 private:
  Removal removal(const StoredCheckpoint& checkpoint, RemovedFor reason) const {
    const std::string age = in_words(checkpoint.age);
    switch (reason) {
      case RemovedFor::kCount:
        return {checkpoint.step, reason,
                rules_.keep == 1 ? "a newer complete one is kept"
                                 : std::to_string(rules_.keep) + " newer complete ones are kept"};
      case RemovedFor::kAge:
        return {checkpoint.step, reason, "it is older than " + in_words(rules_.max_age) + " (" + age + ")"};
      case RemovedFor::kIncomplete:
        return {checkpoint.step, reason, "it has no whole manifest, and nothing in it was written for " + age};
    }
    return {};
  }

  const RetentionRules& rules_;
  const Time save_limit_;
  Step newest_ = 0;  // of the complete ones, if any
  Step completed_last_ = 0;
  uint32_t newer_complete_ = 0;  // counted so far, if counting is on
};

}  // namespace

const char* name(RemovedFor reason) {
  switch (reason) {
    case RemovedFor::kCount:
      return "count";
    case RemovedFor::kAge:
      return "age";
    case RemovedFor::kIncomplete:
      return "incomplete";
  }
  return "?";
}

std::vector<Removal> to_remove(const std::vector<StoredCheckpoint>& stored, const RetentionRules& rules) {
  const std::map<Step, StoredCheckpoint> checkpoints = by_step(stored);
  Judge judge(checkpoints, rules);
  std::vector<Removal> removals;
  for (auto at = checkpoints.rbegin(); at != checkpoints.rend(); ++at) {
    if (std::optional<Removal> removal = judge.judge(at->second); removal.has_value()) {
      removals.push_back(*std::move(removal));
    }
  }
  std::reverse(removals.begin(), removals.end());
  return removals;
}

}  // namespace keepstep::brain
