#include "brain/detect/stragglers.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {
namespace {

Time percentile(std::vector<Time> values, size_t percent) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * percent / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The lower of the two middle values: even if half of the others are slow, too, they hide no straggler.
Time lower_median(const std::vector<Time>& values) { return percentile(values, 50); }

double ratio(Time part, Time whole) {
  return whole > Time{} ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}

}  // namespace

void StepWindow::add(const Identity& identity, Rank rank, Time computed, Time at) {
  if (identity < identity_) {
    return;
  }
  if (identity != identity_) {
    identity_ = identity;
    tracks_.clear();
    since_ = at;
  }
  Track& track = tracks_[rank];
  const Time before = std::exchange(track.last, at);
  if (before == Time{} || computed <= Time{} || at <= before) {
    return;  // the first commit here: it only starts a step
  }
  if (track.steps.size() < kMaxSteps) {
    track.computed.push_back(computed);
    track.steps.push_back(at - before);
    return;
  }
  track.computed[track.next] = computed;
  track.steps[track.next] = at - before;
  track.next = (track.next + 1) % kMaxSteps;
}

std::optional<std::vector<RankPace>> StepWindow::take(const std::vector<Rank>& ranks, Time now) {
  if (ranks.empty() || now - since_ < kLeastTime) {
    return std::nullopt;
  }
  for (const Rank rank : ranks) {
    const auto found = tracks_.find(rank);
    if (found == tracks_.end() || found->second.steps.size() < kLeastSteps) {
      return std::nullopt;
    }
  }
  std::vector<RankPace> paces;
  for (const Rank rank : ranks) {
    const Track& track = tracks_.at(rank);
    paces.push_back({.rank = rank,
                     .computed = lower_median(track.computed),
                     .quick = percentile(track.computed, 10),
                     .step = lower_median(track.steps)});
  }
  for (auto& [rank, track] : tracks_) {
    track.computed.clear();
    track.steps.clear();
    track.next = 0;
  }
  since_ = now;
  return paces;
}

std::vector<StragglerNews> StragglerDetector::step(const Identity& identity, uint32_t world,
                                                   const std::vector<RankPace>& paces) {
  if (identity < identity_) {
    return {};
  }
  if (identity != identity_ || world != world_) {
    identity_ = identity;
    world_ = world;
    paces_.clear();
    streaks_.clear();
    std::erase_if(named_, [&](const auto& entry) { return entry.first >= world; });
  }
  for (const RankPace& pace : paces) {
    if (pace.rank < world) {
      paces_[pace.rank] = pace;
    }
  }
  return world >= 2 && paces_.size() == world ? judge() : std::vector<StragglerNews>();
}

// `sorted`: all ranks, ordered by compute time, including `rank`.
StragglerNews StragglerDetector::measure(const std::vector<RankPace>& sorted, const RankPace& rank, Time step) const {
  const size_t own = static_cast<size_t>(std::find(sorted.begin(), sorted.end(), rank) - sorted.begin());
  const size_t middle = (sorted.size() - 2) / 2;  // the lower middle one of the others
  const Time others = sorted[middle < own ? middle : middle + 1].computed;
  return {.rank = rank.rank,
          .slow = true,
          .computed = rank.computed,
          .others = others,
          .step = step,
          .share = std::min(ratio(rank.computed - others, step), 1.0)};
}

std::vector<StragglerNews> StragglerDetector::judge() {
  std::vector<RankPace> sorted;
  std::vector<Time> steps;
  for (const auto& [rank, pace] : paces_) {
    sorted.push_back(pace);
    steps.push_back(pace.step);
  }
  std::sort(sorted.begin(), sorted.end(), [](const RankPace& a, const RankPace& b) { return a.computed < b.computed; });
  const Time step = lower_median(steps);
  std::vector<StragglerNews> news;
  for (const auto& [rank, pace] : paces_) {
    StragglerNews found = measure(sorted, pace, step);
    const double factor = ratio(found.computed, found.others);
    const auto known = named_.find(rank);
    const bool slow = factor > limits_.factor && found.share > limits_.share && pace.quick > found.others;
    const bool keeps_up = factor < limits_.end_factor || found.share < limits_.end_share;
    const bool changes = known == named_.end() ? slow : keeps_up;
    int& streak = streaks_[rank];
    streak = changes ? streak + 1 : 0;
    if (known == named_.end()) {
      if (streak >= limits_.windows) {
        streak = 0;
        news.push_back(named_[rank] = found);
      }
    } else if (streak >= limits_.end_windows) {
      streak = 0;
      named_.erase(known);
      found.slow = false;
      news.push_back(found);
    } else {
      known->second = found;
    }
  }
  paces_.clear();
  return news;
}

}  // namespace keepstep::brain
