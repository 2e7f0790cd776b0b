// What an ElasticConfig may contain, and the sizes that follow from it.

#include <algorithm>
#include <cmath>

#include "brain/elastic/elastic_policy.h"
#include "brain/text.h"

namespace keepstep::brain {
namespace {

constexpr double kMaxFactor = 100;

std::string text(uint32_t number) { return std::to_string(number); }

void check_steps(const ElasticConfig& config, std::vector<std::string>& found) {
  const uint32_t range = config.max_replicas - config.min_replicas;
  const std::string step = "replicaIncrementStep " + text(config.increment_step);
  if (config.increment_step == 0) {
    found.push_back("replicaIncrementStep is 0, and no size but minReplicas could be reached: give 1 or more");
  } else if (range > 0 && config.increment_step > range) {
    found.push_back(step + " is more than the " + text(range) + " between minReplicas " + text(config.min_replicas) +
                    " and maxReplicas " + text(config.max_replicas) + ", so no other size is ever reached: give " +
                    text(range) + " or less");
  } else if (const uint32_t over = range % config.increment_step; over != 0) {
    const uint32_t below = config.max_replicas - over;
    found.push_back("maxReplicas " + text(config.max_replicas) + " is never reached: from minReplicas " +
                    text(config.min_replicas) + " " + step + " leads to " + text(below) + " and to " +
                    text(below + config.increment_step) + "; give one of these as maxReplicas, or another step");
  }
}

void check_values(const ElasticConfig& config, std::vector<std::string>& found) {
  if (config.increment_step != 1) {
    found.push_back("replicaIncrementStep " + text(config.increment_step) +
                    " and replicaDiscreteValues say two different things: give one of them");
  }
  // Shows only part of a long list: these mistakes are all of one kind.
  constexpr size_t kShown = 8;
  std::string outside;
  size_t count = 0;
  for (const uint32_t value : config.discrete_values) {
    if (value < config.min_replicas || value > config.max_replicas) {
      outside += ++count > kShown ? "" : (count == 1 ? "" : ", ") + text(value);
    }
  }
  if (count > 0) {
    found.push_back("replicaDiscreteValues has " + outside + (count > kShown ? " and more" : "") +
                    ", outside of minReplicas " + text(config.min_replicas) + " to maxReplicas " +
                    text(config.max_replicas) + ": leave out what is outside, or change the bounds");
  }
  if (config.discrete_values.size() > ElasticConfig::kMaxReplicas) {
    found.push_back("replicaDiscreteValues has " + std::to_string(config.discrete_values.size()) +
                    " values: give at most " + text(ElasticConfig::kMaxReplicas));
  }
}

}  // namespace

std::vector<std::string> mistakes(const ElasticConfig& config) {
  std::vector<std::string> found;
  bool bounds = true;
  if (config.min_replicas == 0) {
    bounds = false;
    found.push_back("minReplicas is 0: a job has at least 1");
  }
  if (config.max_replicas > ElasticConfig::kMaxReplicas) {
    bounds = false;
    found.push_back("maxReplicas is " + text(config.max_replicas) + ": give at most " +
                    text(ElasticConfig::kMaxReplicas));
  }
  if (config.min_replicas > config.max_replicas) {
    bounds = false;
    found.push_back("minReplicas " + text(config.min_replicas) + " is more than maxReplicas " +
                    text(config.max_replicas) + ": no size is between them");
  }
  if (bounds) {
    config.discrete_values.empty() ? check_steps(config, found) : check_values(config, found);
  }
  const std::pair<const char*, Time> times[] = {
      {"scalingTimeoutInSeconds", config.scaling_timeout},
      {"gracefulShutdownTimeoutInSeconds", config.graceful_shutdown_timeout},
      {"faultyScaleDownTimeoutInSeconds", config.faulty_scale_down_timeout},
      {"scaleUpSnoozeTimeInSeconds", config.scale_up_snooze},
      {"the minimum time between changes", config.min_between_changes},
      {"the longest backoff", config.max_backoff},
  };
  static_assert(ElasticConfig::kMaxTime == std::chrono::days(30));
  for (const auto& [what, time] : times) {
    if (time < Time{} || time > ElasticConfig::kMaxTime) {
      found.push_back(std::string(what) + " is " + seconds_text(time) + ": give 0 s to 30 days");
    }
  }
  if (!(config.backoff_factor >= 1 && config.backoff_factor <= kMaxFactor)) {  // NaN is a mistake, too
    found.push_back("the backoff factor is " + std::to_string(config.backoff_factor) + ": give 1 (no backoff) to 100");
  }
  if (config.max_backoff < config.min_between_changes) {
    found.push_back("the longest backoff, " + seconds_text(config.max_backoff) +
                    ", is less than the minimum time between changes, " + seconds_text(config.min_between_changes) +
                    ": give at least as much");
  }
  return found;
}

uint32_t ElasticPolicy::largest_configured(uint32_t at_most) const {
  if (!config_.discrete_values.empty()) {  // sorted
    const auto above = std::ranges::upper_bound(config_.discrete_values, at_most);
    return above == config_.discrete_values.begin() ? 0 : *(above - 1);
  }
  const uint32_t most = std::min(at_most, config_.max_replicas);
  return most < config_.min_replicas ? 0 : most - (most - config_.min_replicas) % config_.increment_step;
}

uint32_t ElasticPolicy::smallest_configured(uint32_t at_least) const {
  if (!config_.discrete_values.empty()) {
    const auto found = std::ranges::lower_bound(config_.discrete_values, at_least);
    return found == config_.discrete_values.end() ? 0 : *found;
  }
  if (at_least <= config_.min_replicas) {
    return config_.min_replicas;
  }
  const uint32_t over = (at_least - config_.min_replicas) % config_.increment_step;
  const uint64_t size = uint64_t{at_least} + (over == 0 ? 0 : config_.increment_step - over);
  return size > config_.max_replicas ? 0 : static_cast<uint32_t>(size);
}

uint32_t ElasticPolicy::largest_allowed(uint32_t at_most) const {
  if (only_.empty()) {
    return largest_configured(at_most);
  }
  for (auto size = std::ranges::upper_bound(only_, at_most); size != only_.begin();) {
    if (--size; largest_configured(*size) == *size) {
      return *size;
    }
  }
  return 0;
}

uint32_t ElasticPolicy::smallest_allowed(uint32_t at_least) const {
  if (only_.empty()) {
    return smallest_configured(at_least);
  }
  const auto found = std::find_if(std::ranges::lower_bound(only_, at_least), only_.end(),
                                  [this](uint32_t size) { return smallest_configured(size) == size; });
  return found == only_.end() ? 0 : *found;
}

bool ElasticPolicy::allows(uint32_t replicas) const { return replicas > 0 && largest_allowed(replicas) == replicas; }

}  // namespace keepstep::brain
