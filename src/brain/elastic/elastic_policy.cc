#include "brain/elastic/elastic_policy.h"

#include <algorithm>
#include <cmath>

#include "brain/require.h"
#include "brain/text.h"

namespace keepstep::brain {
namespace {

using Kind = ElasticDecision::Kind;

std::string count_text(uint32_t count) { return std::to_string(count) + (count == 1 ? " replica" : " replicas"); }
std::string are(uint32_t count) { return std::to_string(count) + (count == 1 ? " is" : " are"); }

// "2 of 4 replicas"
std::string of_text(uint32_t part, uint32_t whole) { return std::to_string(part) + " of " + count_text(whole); }

ElasticDecision stay(const ElasticView& view, std::string because) {
  return {Kind::kStay, view.replicas, false, std::move(because), {}};
}

ElasticDecision change(const ElasticView& view, uint32_t replicas, bool forced, std::string because) {
  const Kind kind = replicas > view.replicas ? Kind::kGrow : replicas < view.replicas ? Kind::kShrink : Kind::kSwap;
  return {kind, replicas, forced, std::move(because), {}};
}

// "1 of 4 replicas is leaving", "2 of 4 replicas are missing", or both.
std::string lost_text(const ElasticView& view) {
  std::string text;
  if (view.leaving > 0) {
    text = of_text(view.leaving, view.replicas) + (view.leaving == 1 ? " is leaving" : " are leaving");
  }
  if (view.missing > 0) {
    text += text.empty() ? of_text(view.missing, view.replicas) : ", " + std::to_string(view.missing);
    text += view.missing == 1 ? " is missing" : " are missing";
  }
  return text;
}

std::string fed_text(const ElasticView& view) {
  return "the global batch feeds no more than " + count_text(view.useful);
}

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

const char* name(Kind kind) {
  switch (kind) {
    case Kind::kStay:
      return "stay";
    case Kind::kGrow:
      return "grow";
    case Kind::kShrink:
      return "shrink";
    case Kind::kSwap:
      return "swap";
  }
  return "unknown";
}

ElasticPolicy::ElasticPolicy(ElasticConfig config) {
  const std::vector<std::string> found = configure(std::move(config));
  require(found.empty(), "the elastic policy was given a config with mistakes");
}

std::vector<std::string> ElasticPolicy::configure(ElasticConfig config) {
  std::vector<std::string> found = mistakes(config);
  if (!found.empty()) {
    return found;
  }
  std::ranges::sort(config.discrete_values);
  std::swap(config_, config);
  if (asked_.has_value() && !allows(*asked_)) {
    const std::string asked = std::to_string(*asked_);
    std::swap(config_, config);
    return {"the user asked for " + asked + " replicas, which would not be allowed any more: ask for another size " +
            "first, or for none (`keepstep scale JOB --to auto`)"};
  }
  while (backoff_ > 0 && wait_at(backoff_ - 1) >= config_.max_backoff) {
    --backoff_;
  }
  return {};
}

std::string ElasticPolicy::scale_to(std::optional<uint32_t> replicas) {
  if (replicas.has_value() && !allows(*replicas)) {
    const uint32_t below = largest_allowed(*replicas);
    const uint32_t above = smallest_allowed(*replicas);
    std::string text = count_text(*replicas);
    if (*replicas < config_.min_replicas) {
      text += *replicas == 1 ? " is" : " are";
      text += " less than minReplicas (" + std::to_string(config_.min_replicas) + ")";
    } else if (*replicas > config_.max_replicas) {
      text += " are more than maxReplicas (" + std::to_string(config_.max_replicas) + ")";
    } else if (largest_configured(*replicas) == *replicas) {
      text += " cannot share a step's micro-batches evenly";
    } else if (config_.discrete_values.empty()) {
      text += " cannot be reached from minReplicas (" + std::to_string(config_.min_replicas) + ") by steps of " +
              std::to_string(config_.increment_step) + " (replicaIncrementStep)";
    } else {
      text += *replicas == 1 ? " is" : " are";
      text += " not among replicaDiscreteValues";
    }
    if (below != 0 && above != 0) {
      return text + ": ask for " + std::to_string(below) + " or " + std::to_string(above);
    }
    return text + ": ask for " + std::to_string(below != 0 ? below : above);
  }
  asked_ = replicas;
  asked_open_ = replicas.has_value();  // also if repeated: the user does not want to wait
  return "";
}

// ---- what it remembers ---------------------------------------------------------------------------------------------

void ElasticPolicy::note(const ElasticView& view, const Sizes& sizes, Time now) {
  const uint32_t level = std::min(sizes.hold, ElasticConfig::kMaxReplicas);
  Time since = now;
  while (!there_.empty() && there_.back().level > level) {
    since = there_.back().since;  // if more than `level` were there, so were that many
    there_.pop_back();
  }
  if (level > 0 && (there_.empty() || there_.back().level < level)) {
    there_.push_back({level, since});
  }
  if (view.missing == 0) {
    missing_since_.reset();
  } else if (!missing_since_.has_value()) {
    missing_since_ = now;
  }
  if (sizes.wanted == view.replicas) {
    asked_open_ = false;
  }
}

Time ElasticPolicy::wait_at(int backoff) const {
  const double wait =
      static_cast<double>(config_.min_between_changes.count()) * std::pow(config_.backoff_factor, backoff);
  return wait >= static_cast<double>(config_.max_backoff.count()) ? config_.max_backoff
                                                                  : Time(static_cast<Time::rep>(wait));
}

std::optional<Time> ElasticPolicy::unforced_from() const {
  std::optional<Time> from;
  if (last_change_.has_value()) {
    from = *last_change_ + wait();
  }
  if (last_forced_down_.has_value()) {
    from = std::max(*from, *last_forced_down_ + config_.scale_up_snooze);
  }
  return from;
}

void ElasticPolicy::on_changed(uint32_t from, uint32_t to, bool forced, Time now) {
  could_grow_since_.reset();
  const bool newcomers = std::exchange(decided_newcomers_, false);
  const std::optional<uint32_t> request = std::exchange(decided_for_request_, std::nullopt);
  if (from == 0) {
    return;
  }
  if (request.has_value() && request == asked_) {
    asked_open_ = false;
  }
  if (forced && newcomers && to <= from) {
    swaps_.push_back(now);
    if (swaps_.size() > kMaxSwaps) {
      swaps_.pop_front();
    }
  }
  if (growth_.has_value()) {
    const bool lasted = now - growth_->at >= config_.min_between_changes;
    if (lasted) {
      backoff_ -= backoff_ > 0;
      growth_.reset();
    } else if (forced && to < from && to <= growth_->from) {
      backoff_ += wait_at(backoff_ + 1) > wait();
      growth_.reset();
    }
  }
  if (const std::optional<Time> before = unforced_from(); before.has_value()) {
    for (Time quiet = now - *before; backoff_ > 0 && quiet >= wait(); --backoff_) {
      quiet -= wait();
    }
  }
  if (!forced && to > from) {
    growth_ = Growth{from, now};
  }
  last_change_ = now;
  if (forced && to < from) {
    last_forced_down_ = now;
  }
}

bool ElasticPolicy::too_many_swaps(Time now) const {
  return swaps_.size() == kMaxSwaps && now - swaps_.front() < config_.min_between_changes;
}

// How many replicas may run if some of them must be replaced.
uint32_t ElasticPolicy::room(const Sizes& sizes, Time now) const {
  const bool may_do_without = largest_allowed(std::min(sizes.stay, sizes.wanted)) > 0;
  return too_many_swaps(now) && may_do_without ? sizes.stay : sizes.hold;
}

// ---- the decision --------------------------------------------------------------------------------------------------

ElasticDecision ElasticPolicy::step(const ElasticView& view, Time now) {
  require(uint64_t{view.missing} + view.leaving <= view.replicas, "more replicas leave or are missing than there are");
  Sizes sizes;
  sizes.stay = view.replicas - view.missing - view.leaving;
  sizes.hold = std::max(view.ready, sizes.stay);
  uint32_t most = asked_.value_or(config_.max_replicas);
  if (view.useful > 0) {
    most = std::min(most, view.useful);
  }
  sizes.wanted = std::max(largest_allowed(most), smallest_allowed(1));  // never less than the smallest size
  note(view, sizes, now);

  waits_until_.reset();
  ElasticDecision decision = decide(view, sizes, now);
  if (decision.kind != Kind::kStay) {
    decided_newcomers_ = decision.forced && view.replicas > sizes.stay && decision.replicas > sizes.stay;
  }

  const auto add = [&](const char* key, uint32_t value, bool always) {
    if (always || value > 0) {
      decision.considered.emplace_back(key, int64_t{value});
    }
  };
  add("replicas", view.replicas, true);
  add("ready", sizes.hold, true);
  add("coming", view.coming, false);
  add("missing", view.missing, false);
  add("leaving", view.leaving, false);
  add("useful", view.useful, false);
  add("asked_for", asked_.value_or(0), false);
  add("most", sizes.wanted, true);
  add("fits", largest_allowed(std::min(sizes.hold, sizes.wanted)), true);
  add("next_size", smallest_allowed(view.replicas + 1), false);
  if (view.leaving > 0 && view.leave_by.has_value()) {
    decision.considered.emplace_back("leave_by_s", seconds(*view.leave_by));
  }
  if (waits_until_.has_value()) {
    decision.considered.emplace_back("waits_until_s", seconds(*waits_until_));
  }
  return decision;
}

ElasticDecision ElasticPolicy::decide(const ElasticView& view, const Sizes& sizes, Time now) {
  const std::optional<Time> could_grow_since = std::exchange(could_grow_since_, std::nullopt);
  if (!allows(view.replicas)) {
    return leave_a_size_not_allowed(view, sizes);
  }
  if (view.leaving > 0) {
    return on_leaving(view, sizes, now);
  }
  if (view.missing > 0) {
    return on_missing(view, sizes, now);
  }
  if (asked_.has_value() && (view.replicas > *asked_ || (asked_open_ && sizes.wanted > view.replicas))) {
    return on_request(view, sizes);
  }
  if (view.replicas > sizes.wanted) {
    return shrink_to_useful(view, sizes, now);
  }
  could_grow_since_ = could_grow_since;
  return grow(view, sizes, now);
}

// Nothing runs yet, or the allowed sizes changed while the job runs. Goes to the nearest allowed size below the current
// one, to give back at once what it may not keep; from below all limits it goes up as soon as possible.
ElasticDecision ElasticPolicy::leave_a_size_not_allowed(const ElasticView& view, const Sizes& sizes) {
  uint32_t replicas = largest_allowed(std::min({sizes.hold, sizes.wanted, view.replicas}));
  if (replicas == 0) {
    replicas = largest_allowed(std::min(sizes.hold, sizes.wanted));
  }
  const std::string what =
      (view.replicas == 0 ? "nothing runs yet" : "the job may not have " + count_text(view.replicas) + " any more") +
      "; " + are(sizes.hold) + " ready";
  if (replicas == 0) {
    return stay(view, what + ", and " + std::to_string(smallest_allowed(1)) + " is the smallest size");
  }
  return change(view, replicas, true, what);
}

// Leaving or missing replicas: ready newcomers take their places first.
ElasticDecision ElasticPolicy::replace(const ElasticView& view, const Sizes& sizes, uint32_t replicas, Time now) {
  std::string because = lost_text(view) + ": ";
  const uint32_t newcomers = replicas > sizes.stay ? replicas - sizes.stay : 0;
  if (newcomers == 0) {
    because += std::to_string(replicas) + (replicas == 1 ? " goes on" : " go on");
    if (sizes.hold > sizes.stay && too_many_swaps(now)) {
      because += ", and no newcomers take places: that was done " + std::to_string(kMaxSwaps) + " times within " +
                 seconds_text(config_.min_between_changes) + " (the minimum time between changes)";
    }
  } else if (replicas == view.replicas) {
    because +=
        newcomers == 1 ? "a newcomer that is ready takes its place" : "newcomers that are ready take their places";
  } else {
    because += std::to_string(replicas) + (replicas == 1 ? " goes on, " : " go on, ") + std::to_string(newcomers) +
               (newcomers == 1 ? " newcomer that is ready among them" : " newcomers that are ready among them");
  }
  if (replicas > view.replicas) {
    because += "; " + asked_text();
    decided_for_request_ = asked_;
  } else if (replicas < view.replicas && replicas == sizes.wanted) {
    because += "; " + (asked_ == replicas ? asked_text() : fed_text(view));
  }
  return change(view, replicas, true, because);
}

ElasticDecision ElasticPolicy::on_leaving(const ElasticView& view, const Sizes& sizes, Time now) {
  const uint32_t most = asked_open_ ? sizes.wanted : std::min(view.replicas, sizes.wanted);
  const uint32_t replicas = largest_allowed(std::min(room(sizes, now), most));
  if (replicas > 0) {
    return replace(view, sizes, replicas, now);
  }
  waits_until_ = view.leave_by;
  return stay(view, lost_text(view) + ": without them " + std::to_string(sizes.hold) + " would go on, and " +
                        std::to_string(smallest_allowed(1)) +
                        " is the smallest size; leaving ranks stay until newcomers are ready, or until their deadline");
}

ElasticDecision ElasticPolicy::on_missing(const ElasticView& view, const Sizes& sizes, Time now) {
  const uint32_t most = asked_open_ ? sizes.wanted : std::min(view.replicas, sizes.wanted);
  const uint32_t room_for = room(sizes, now);
  const uint32_t replicas = largest_allowed(std::min(room_for, most));
  const bool enough = replicas >= std::min(view.replicas, sizes.wanted);
  // If newcomers are no longer let in, there is nothing to wait for.
  if (replicas > 0 && (enough || room_for < sizes.hold)) {
    return replace(view, sizes, replicas, now);
  }
  const Time until = *missing_since_ + config_.faulty_scale_down_timeout;
  if (now < until) {
    waits_until_ = until;
    return stay(view, lost_text(view) + ": waits " + seconds_text(config_.faulty_scale_down_timeout) +
                          " for replacements (faultyScaleDownTimeoutInSeconds)");
  }
  if (replicas > 0) {
    ElasticDecision decision = replace(view, sizes, replicas, now);
    decision.because += "; no replacement came within " + seconds_text(config_.faulty_scale_down_timeout) +
                        " (faultyScaleDownTimeoutInSeconds)";
    return decision;
  }
  return stay(view, lost_text(view) + ": " + are(sizes.hold) + " ready, and " + std::to_string(smallest_allowed(1)) +
                        " is the smallest size: waits for replacements");
}

std::string ElasticPolicy::asked_text() const {
  return count_text(*asked_) + (*asked_ == 1 ? " is asked for" : " are asked for");
}

// The user just asked for it: it waits for nothing, but cannot go beyond what is ready.
ElasticDecision ElasticPolicy::on_request(const ElasticView& view, const Sizes& sizes) {
  std::string because = asked_text();
  if (sizes.wanted < *asked_) {
    because += ", but " + fed_text(view);
  }
  const uint32_t replicas = largest_allowed(std::min(sizes.hold, sizes.wanted));
  if (replicas < sizes.wanted) {
    because += "; " + are(sizes.hold) + " ready, the rest follows as it comes";
  }
  if (replicas == view.replicas) {
    return stay(view, because);
  }
  decided_for_request_ = asked_;
  return change(view, replicas, true, because);
}

std::string ElasticPolicy::apart_text() const {
  const std::string least = seconds_text(config_.min_between_changes);
  return "waits until " + seconds_text(wait()) + " after the last change (the minimum time between changes" +
         (wait() > config_.min_between_changes ? ", " + least + ", and backoff: growth did not last)" : ")");
}

// Replicas that the batch cannot feed are useless but harmless, so there is time.
ElasticDecision ElasticPolicy::shrink_to_useful(const ElasticView& view, const Sizes& sizes, Time now) {
  const std::string because = fed_text(view);
  if (last_change_.has_value() && now < *last_change_ + wait()) {
    waits_until_ = *last_change_ + wait();
    return stay(view, because + "; " + apart_text());
  }
  return change(view, sizes.wanted, false, because);
}

std::string ElasticPolicy::nothing_to_grow_into(const ElasticView& view, const Sizes& sizes) const {
  if (view.useful > 0 && view.useful < view.replicas) {
    return fed_text(view) + ", and " + std::to_string(view.replicas) + " is the smallest size";
  }
  if (sizes.hold <= view.replicas) {
    return asked_.has_value() && sizes.wanted > view.replicas ? asked_text() + "; " + are(sizes.hold) + " ready" : "";
  }
  const std::string ready = are(sizes.hold) + " ready; ";
  const uint32_t next = smallest_allowed(view.replicas + 1);
  if (asked_ == view.replicas) {
    return ready + asked_text();
  }
  if (next == 0) {
    return ready + "maxReplicas is " + std::to_string(config_.max_replicas);
  }
  if (sizes.hold >= next && view.useful > 0 && view.useful < next) {
    return ready + fed_text(view);
  }
  return ready + "the next size is " + std::to_string(next);
}

ElasticDecision ElasticPolicy::grow(const ElasticView& view, const Sizes& sizes, Time now) {
  const std::optional<Time> could_since = std::exchange(could_grow_since_, std::nullopt);
  const uint32_t fits = largest_allowed(std::min(sizes.hold, sizes.wanted));
  if (fits <= view.replicas) {
    return stay(view, nothing_to_grow_into(view, sizes));
  }
  // The largest size for which, by then, there will have been room long enough, if nothing leaves.
  const auto steady_by = [&](Time then) {
    uint32_t level = 0;
    for (const Level& there : there_) {
      level = there.since + config_.scaling_timeout <= then ? there.level : level;
    }
    return largest_allowed(std::min(level, sizes.wanted));
  };
  const std::string ready = are(sizes.hold) + " ready; ";
  const std::optional<Time> from = unforced_from();
  const uint32_t steady = steady_by(now);
  const bool too_soon = from.has_value() && now < *from;
  if (too_soon || steady <= view.replicas) {
    const uint32_t next = smallest_allowed(view.replicas + 1);
    const auto there = std::ranges::find_if(there_, [&](const Level& level) { return level.level >= next; });
    const Time steady_from = there->since + config_.scaling_timeout;
    if (!too_soon || *from <= steady_from) {
      waits_until_ = steady_from;
      return stay(view, ready + "what is new has to be ready for " + seconds_text(config_.scaling_timeout) +
                            " without a break before it is used (scalingTimeoutInSeconds)");
    }
    waits_until_ = from;
    if (*from == *last_change_ + wait()) {
      return stay(view, ready + apart_text());
    }
    return stay(view, ready + "no growth for " + seconds_text(config_.scale_up_snooze) +
                          " after a scale-down that was forced (scaleUpSnoozeTimeInSeconds)");
  }
  // One change instead of two, if the wait is short. Newcomers that are still starting could not be used by then.
  could_grow_since_ = could_since.value_or(now);
  const Time until = *could_grow_since_ + config_.scaling_timeout;
  if (const uint32_t soon = steady_by(until); soon > steady) {
    waits_until_ = until;
    return stay(view, ready + "could grow to " + std::to_string(steady) + ", and waits for " + std::to_string(soon) +
                          " to have been ready for " + seconds_text(config_.scaling_timeout) +
                          ", too: one change instead of two");
  }
  return change(view, steady, false,
                std::to_string(steady) + " have been ready for " + seconds_text(config_.scaling_timeout) +
                    " (scalingTimeoutInSeconds)" + (asked_.has_value() ? "; " + asked_text() : ""));
}

}  // namespace keepstep::brain
