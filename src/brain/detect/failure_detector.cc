#include "brain/detect/failure_detector.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace keepstep::brain {
namespace {

constexpr size_t kStepsKept = 64;
constexpr size_t kStepsNeeded = 3;
// DDP rearranges its buckets after the first step; compilers compile a second time.
constexpr Version kFirstSteps = 2;
constexpr Time kSlack = std::chrono::milliseconds(500);
constexpr Time kMaxStarved = std::chrono::seconds(30);
constexpr Time kStuckTogether = std::chrono::seconds(10);

auto position(const RankProgress& rank) {
  return std::tuple(rank.step, rank.micro_batch, rank.phase, rank.waits == WaitsIn::kVote, rank.entered, rank.left,
                    rank.messages, rank.moved, rank.slow);
}

// For ranks that wait in different places: which one got least far.
auto how_far(const RankProgress& rank) {
  return std::tuple(rank.step, rank.phase == StepPhase::kUpdate, rank.waits == WaitsIn::kVote, rank.entered_world);
}

// Whether it waits for other ranks in a way that ends as soon as they arrive.
bool waits(const RankProgress& rank) {
  switch (rank.waits) {
    case WaitsIn::kCollective:
    case WaitsIn::kMessage:
    case WaitsIn::kVote:
    case WaitsIn::kStore:
    case WaitsIn::kPause:
      return rank.process == ProcessState::kRuns;
    case WaitsIn::kNothing:
    case WaitsIn::kJoin:  // the membership has its own limits for that
    case WaitsIn::kEnd:   // others may do anything after their last step
      return false;
  }
  return false;
}

bool may_wait_for(const RankProgress& waiter, const RankProgress& other) {
  if (waiter.waits == WaitsIn::kVote) {
    // A rank that is past this has seen the decision: nobody waits for it, whatever holds up the waiter.
    return other.step < waiter.step || (other.step == waiter.step && other.phase != StepPhase::kUpdate);
  }
  if (waiter.waits != WaitsIn::kCollective) {
    return true;
  }
  if (waiter.world) {
    return other.entered_world < waiter.entered_world;
  }
  return waiter.members == 0 || other.rank >= 64 || (waiter.members >> other.rank & 1) != 0;
}

std::string seconds(Time time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", std::chrono::duration<double>(time).count());
  return text;
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size() && i < 8; ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  }
  return ranks.size() > 8 ? text + " and " + std::to_string(ranks.size() - 8) + " more" : text;
}

}  // namespace

std::vector<Suspicion> FailureDetector::step(const ProgressSample& sample, Time now) {
  std::vector<Suspicion> found;
  const Time gap = now - last_;
  const std::optional<Time> before = entered_ ? std::optional(last_) : std::nullopt;
  const bool late = gap > kPause;
  watched_ += std::clamp(gap, Time{}, kLongestGap);
  full_ += std::clamp(gap, Time{}, kPause);
  last_ = now;
  all_wait_for_.reset();
  if (config_.mode == HangMode::kOff) {
    return found;
  }
  enter(sample, before);
  std::erase_if(tracks_, [&](const auto& track) {
    return std::none_of(sample.ranks.begin(), sample.ranks.end(),
                        [&](const RankProgress& rank) { return rank.rank == track.first; });
  });
  for (const RankProgress& rank : sample.ranks) {
    follow(rank);
    Track& track = tracks_[rank.rank];
    // If the agent itself was stopped, it finds its workers stopped as well, and must see this once more.
    const int before = late ? 0 : track.stopped_in_a_row;
    track.stopped_in_a_row = rank.process == ProcessState::kStopped ? before + 1 : 0;
  }
  if (learned_commit_ == 0) {
    without_commit_at_ = now;
  }
  find_stopped(sample, found);
  if (sample.trains) {
    find_missing(sample, found);
  }
  return found;
}

void FailureDetector::enter(const ProgressSample& sample, std::optional<Time> before) {
  if (entered_ && sample.identity == identity_) {
    return;
  }
  entered_ = true;
  identity_ = sample.identity;
  tracks_.clear();
  first_commit_ = sample.version;
  learned_commit_ = 0;
  without_commit_at_ = before;  // this generation did not exist then
}

void FailureDetector::follow(const RankProgress& rank) {
  const auto [found, fresh] = tracks_.try_emplace(rank.rank);
  Track& track = found->second;
  if (fresh || track.last.worker != rank.worker || position(track.last) != position(rank)) {
    track.moved_at = watched_;
    track.moved_full = full_;
    track.starved_before = rank.starved;
  }
  if (rank.still_for.has_value()) {
    track.moved_at = watched_ - *rank.still_for;
    track.moved_full = full_ - *rank.still_for;
  }
  track.last = rank;
  learn(rank);
}

// All ranks commit together, so it is enough to look at the one that is ahead.
void FailureDetector::learn(const RankProgress& rank) {
  if (rank.still_for.has_value() || rank.committed <= std::max(first_commit_, learned_commit_)) {
    return;
  }
  if (learned_commit_ != 0) {
    // Count each step between two looks: otherwise quick steps would count as first steps for a long time.
    add_steps(rank.committed - learned_commit_, rank.committed_at - learned_at_);
  } else if (without_commit_at_.has_value()) {
    // The first step of a generation is atypical. Those that came with it before we looked again took at most all of
    // this time.
    add_steps(rank.committed - first_commit_ - 1, last_ - *without_commit_at_);
  }
  learned_commit_ = rank.committed;
  learned_at_ = rank.committed_at;
}

void FailureDetector::add_steps(Version count, Time took) {
  if (count == 0 || took <= Time{}) {
    return;
  }
  steps_.insert(steps_.end(), std::min<size_t>(count, kStepsKept), took / static_cast<int64_t>(count));
  while (steps_.size() > kStepsKept) {
    steps_.pop_front();
  }
}

std::optional<Time> FailureDetector::step_time() const {
  if (steps_.size() < kStepsNeeded) {
    return std::nullopt;
  }
  std::vector<Time> sorted(steps_.begin(), steps_.end());
  const auto at = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) * 9 / 10);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

Time FailureDetector::still_for(Rank rank) const {
  const auto found = tracks_.find(rank);
  return found == tracks_.end() ? Time{} : watched_ - found->second.moved_at;
}

// If all ranks are stopped, somebody is pausing the job; and nobody waits for a rank that is alone.
void FailureDetector::find_stopped(const ProgressSample& sample, std::vector<Suspicion>& found) {
  const bool anyone_runs = std::any_of(sample.ranks.begin(), sample.ranks.end(),
                                       [](const RankProgress& rank) { return rank.process != ProcessState::kStopped; });
  const bool others_elsewhere = sample.ranks.size() < sample.world;
  if (!anyone_runs && !(sample.ranks.size() == 1 && others_elsewhere)) {
    return;
  }
  for (const RankProgress& rank : sample.ranks) {
    Track& track = tracks_.at(rank.rank);
    if (track.stopped_in_a_row < 2 || track.reported || rank.still_for.has_value()) {
      continue;
    }
    Suspicion suspicion = suspect(rank, track, {}, {}, {});
    suspicion.stopped = true;
    suspicion.because = "its process is stopped, " + place_text(rank);
    found.push_back(std::move(suspicion));
  }
}

bool FailureDetector::starting(const RankProgress& rank) const {
  return rank.phase == StepPhase::kOutside || learned_commit_ == 0 || learned_commit_ < first_commit_ + kFirstSteps ||
         !step_time().has_value();
}

Time FailureDetector::limit_for(const RankProgress& rank, Time needed, bool most_are_away) const {
  const std::optional<Time> learned = step_time();
  const Time usual = 2 * std::max(learned.value_or(Time{}), needed) + kSlack;
  if (starting(rank)) {
    const bool again = learned.has_value() && rank.phase != StepPhase::kOutside;
    const Time least = again ? std::max(config_.again_limit, 20 * *learned) : config_.first_limit;
    return std::max({least, usual, config_.mode == HangMode::kFixed ? config_.fixed : Time{}});
  }
  if (config_.mode == HangMode::kFixed) {
    return config_.fixed;
  }
  // If more ranks are away than wait, the few probably skipped something; it is less likely that the many hang.
  return most_are_away ? 5 * usual : usual;
}

void FailureDetector::find_missing(const ProgressSample& sample, std::vector<Suspicion>& found) {
  std::vector<const RankProgress*> waiters;
  std::vector<const RankProgress*> away;  // wait for nobody, and did not say that it takes long
  bool others = sample.ranks.size() < sample.world;
  bool all_here_wait = true;
  Time last_move{};
  Time last_arrival{};  // on the clock of full gaps
  Time last_move_here{};
  for (const RankProgress& rank : sample.ranks) {
    const Time moved_at = tracks_.at(rank.rank).moved_at;
    last_move = std::max(last_move, moved_at);
    if (!rank.still_for.has_value()) {
      all_here_wait = all_here_wait && waits(rank);
      last_move_here = std::max(last_move_here, moved_at);
    }
    if (waits(rank)) {
      waiters.push_back(&rank);
      last_arrival = std::max(last_arrival, tracks_.at(rank.rank).moved_full);
    } else if (rank.process == ProcessState::kTraced) {
      return;  // somebody is debugging it: everyone waits for that
    } else if (rank.waits == WaitsIn::kNothing && !rank.slow) {
      away.push_back(&rank);
    } else {
      others = true;
    }
  }
  if (waiters.empty()) {
    return;
  }
  if (all_here_wait) {
    all_wait_for_ = watched_ - last_move_here;
  }
  if (away.empty() && !others) {
    find_stuck_together(waiters, last_move, found);
    return;
  }
  for (const RankProgress* rank : away) {
    Track& track = tracks_.at(rank->rank);
    // Ranks of other nodes are judged there, by an agent that sees their processes.
    if (track.reported || rank->still_for.has_value()) {
      continue;
    }
    std::vector<Rank> waiting;
    for (const RankProgress* waiter : waiters) {
      if (may_wait_for(*waiter, *rank)) {
        waiting.push_back(waiter->rank);
      }
    }
    if (waiting.empty()) {
      continue;
    }
    const Time starved = std::min(rank->starved - track.starved_before, kMaxStarved);
    const Time waited = watched_ - last_move - starved;
    const Time limit = limit_for(*rank, last_arrival - track.moved_full, away.size() > waiters.size());
    if (waited <= limit) {
      continue;
    }
    Suspicion suspicion = suspect(*rank, track, waited, limit, std::move(waiting));
    const RankProgress& first = **std::find_if(waiters.begin(), waiters.end(), [&](const RankProgress* waiter) {
      return waiter->rank == suspicion.waiting.front();
    });
    suspicion.because = "no progress for " + seconds(suspicion.idle) + " " + place_text(*rank) + "; " +
                        ranks_text(suspicion.waiting) + " waited " + seconds(waited) + " for it in " +
                        wait_text(first) + ", " + seconds(limit) + " is the limit";
    found.push_back(std::move(suspicion));
  }
}

Suspicion FailureDetector::suspect(const RankProgress& culprit, Track& track, Time waited, Time limit,
                                   std::vector<Rank> waiting) const {
  track.reported = true;
  return {.culprit = culprit,
          .waited = waited,
          .limit = limit,
          .idle = watched_ - track.moved_at,
          .step_time = step_time(),
          .waiting = std::move(waiting)};
}

void FailureDetector::find_stuck_together(const std::vector<const RankProgress*>& waiters, Time last_move,
                                          std::vector<Suspicion>& found) {
  const Time waited = watched_ - last_move;
  const RankProgress& lowest =
      **std::min_element(waiters.begin(), waiters.end(),
                         [](const RankProgress* a, const RankProgress* b) { return how_far(*a) < how_far(*b); });
  const Time learned = step_time().value_or(Time{});
  Time limit = config_.mode == HangMode::kFixed ? config_.fixed : 10 * learned + kStuckTogether;
  if (starting(lowest)) {
    limit = std::max(limit, config_.first_limit);
  }
  if (std::any_of(waiters.begin(), waiters.end(),
                  [](const RankProgress* rank) { return rank->still_for.has_value(); })) {
    limit = std::max(limit, config_.link_limit + 10 * learned);
  }
  if (waited <= limit) {
    return;
  }
  const bool all_alike = std::all_of(waiters.begin(), waiters.end(),
                                     [&](const RankProgress* rank) { return how_far(*rank) == how_far(lowest); });
  std::vector<Rank> waiting;
  for (const RankProgress* rank : waiters) {
    if (how_far(*rank) != how_far(lowest)) {
      waiting.push_back(rank->rank);
    }
  }
  for (const RankProgress* rank : waiters) {
    Track& track = tracks_.at(rank->rank);
    // If nothing distinguishes them, one is enough: the new generation leaves behind whatever held them all up.
    const bool guilty = all_alike ? rank == &lowest : how_far(*rank) == how_far(lowest);
    if (!guilty || track.reported || rank->still_for.has_value()) {
      continue;
    }
    Suspicion suspicion = suspect(*rank, track, waited, limit, waiting);
    suspicion.because = "all ranks have waited for each other for " + seconds(waited) + ", " + seconds(limit) +
                        " is the limit; " +
                        (all_alike ? "nothing distinguishes them, so one is replaced: " + place_text(*rank)
                                   : "the one that is furthest behind is replaced: " + place_text(*rank)) +
                        ", waiting for " + wait_text(*rank);
    found.push_back(std::move(suspicion));
  }
}

}  // namespace keepstep::brain
