#include "brain/detect/early_leavers.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "brain/detect/failure_detector.h"

namespace keepstep::brain {
namespace {

// Whether `waiter`, in a later step, waits for something that only `leaver` can provide.
bool needs(const RankProgress& waiter, const RankProgress& leaver) {
  if (waiter.waits == WaitsIn::kVote) {
    return true;
  }
  if (waiter.waits != WaitsIn::kCollective) {
    return false;
  }
  if (waiter.world) {
    return leaver.entered_world < waiter.entered_world;
  }
  return leaver.rank < 64 && (waiter.members >> leaver.rank & 1) != 0;
}

std::string place(const RankProgress& rank) {
  char text[160];
  std::snprintf(text, sizeof(text), "%u:%u:%llu:%d:%llu:%llu:%llu:%llu;", rank.rank, rank.worker,
                static_cast<unsigned long long>(rank.step), static_cast<int>(rank.waits),
                static_cast<unsigned long long>(rank.entered), static_cast<unsigned long long>(rank.left),
                static_cast<unsigned long long>(rank.moved), static_cast<unsigned long long>(rank.messages));
  return text;
}

std::string sentence(const EarlyLeaver& found) {
  std::string others = found.waiting.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < found.waiting.size() && i < 8; ++i) {
    others += (i == 0 ? " " : ", ") + std::to_string(found.waiting[i]);
  }
  if (found.waiting.size() > 8) {
    others += " and " + std::to_string(found.waiting.size() - 8) + " more";
  }
  const std::string who = "rank " + std::to_string(found.rank.rank);
  const std::string when = found.after == 0 ? " before the first step" : " after step " + std::to_string(found.after);
  return who + (found.returned() ? "'s training function returned" : " left its loop over run.steps") + when + "; " +
         others + (found.waiting.size() == 1 ? " waits" : " wait") + " for it in step " + std::to_string(found.step);
}

}  // namespace

std::vector<EarlyLeaver> EarlyLeavers::step(const ProgressSample& sample, Time now) {
  watched_ += std::clamp(now - last_, Time{}, FailureDetector::kLongestGap);
  last_ = now;
  if (!entered_ || sample.identity != identity_) {
    entered_ = true;
    identity_ = sample.identity;
    was_in_loop_.clear();
    watched_ranks_.clear();
  }
  std::vector<EarlyLeaver> found;
  for (const RankProgress& rank : sample.ranks) {
    if (rank.phase != StepPhase::kOutside) {
      was_in_loop_.insert(rank.rank);
    }
    EarlyLeaver leaver;
    leaver.rank = rank;
    leaver.after = std::max<Step>(rank.committed, sample.version);
    const bool elsewhere = rank.waits == WaitsIn::kJoin || rank.waits == WaitsIn::kPause || rank.slow;
    const bool in_loop_before = was_in_loop_.contains(rank.rank) || rank.committed > sample.version;
    const bool left = leaver.returned() || (in_loop_before && !elsewhere);
    if (!sample.trains || rank.phase != StepPhase::kOutside || !left || rank.still_for.has_value() ||
        rank.process != ProcessState::kRuns) {
      watched_ranks_.erase(rank.rank);
      continue;
    }
    std::string places = place(rank);
    for (const RankProgress& other : sample.ranks) {
      if (other.step > leaver.after && other.process == ProcessState::kRuns && needs(other, rank)) {
        leaver.waiting.push_back(other.rank);
        leaver.step = other.step;
        places += place(other);
      }
    }
    if (leaver.waiting.empty()) {
      watched_ranks_.erase(rank.rank);
      continue;
    }
    Watched& watched = watched_ranks_[rank.rank];
    if (watched.place != places) {
      watched.place = std::move(places);
      watched.since = watched_;
    }
    leaver.waited = watched_ - watched.since;
    bool& told = leaver.returned() ? watched.told_of_return : watched.told;
    if (leaver.waited < kLimit || told) {
      continue;
    }
    told = true;
    leaver.because = sentence(leaver);
    found.push_back(std::move(leaver));
  }
  return found;
}

}  // namespace keepstep::brain
