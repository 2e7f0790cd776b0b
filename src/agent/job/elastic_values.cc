#include "agent/job/elastic_values.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace keepstep::agent {
namespace {

using brain::ElasticConfig;
using brain::Time;

constexpr double kMaxSeconds = std::chrono::duration<double>(ElasticConfig::kMaxTime).count();
constexpr double kMaxFactor = 100;
constexpr const char* kIncrementStep = "replicaIncrementStep";
constexpr const char* kDiscreteValues = "replicaDiscreteValues";
constexpr const char* kWhole = "elasticPolicy";

template <typename Number>
std::optional<Number> number_in(const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    return std::nullopt;
  }
  return value;
}

// One name: how its text becomes a value of the config, and back.
struct Entry {
  PolicyName known;
  std::function<std::string(const std::string& text, ElasticConfig& config)> set;
  std::function<std::string(const ElasticConfig& config)> text;
};

Entry count_entry(const char* name, const char* option, uint32_t ElasticConfig::* member) {
  return {{name, option},
          [member](const std::string& text, ElasticConfig& config) {
            const auto value = number_in<uint32_t>(text, 1, ElasticConfig::kMaxReplicas);
            config.*member = value.value_or(config.*member);
            return value ? "" : absl::StrFormat("give a number from 1 to %d", ElasticConfig::kMaxReplicas);
          },
          [member](const ElasticConfig& config) { return std::to_string(config.*member); }};
}

Entry time_entry(const char* name, const char* option, Time ElasticConfig::* member) {
  return {{name, option},
          [member](const std::string& text, ElasticConfig& config) {
            const auto value = number_in<double>(text, 0, kMaxSeconds);
            if (value) {
              config.*member = std::chrono::duration_cast<Time>(std::chrono::duration<double>(*value));
            }
            return value ? "" : absl::StrFormat("give seconds from 0 to %.0f", kMaxSeconds);
          },
          [member](const ElasticConfig& config) {
            return absl::StrFormat("%g", std::chrono::duration<double>(config.*member).count());
          }};
}

std::string set_discrete_values(const std::string& text, ElasticConfig& config) {
  std::vector<uint32_t> values;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto value =
        number_in<uint32_t>(std::string(absl::StripAsciiWhitespace(part)), 1, ElasticConfig::kMaxReplicas);
    if (!value || values.size() == kMaxDiscreteValues) {
      return absl::StrFormat("give numbers from 1 to %d, separated by commas, at most %d of them",
                             ElasticConfig::kMaxReplicas, kMaxDiscreteValues);
    }
    values.push_back(*value);
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  config.discrete_values = std::move(values);
  return "";
}

std::string set_factor(const std::string& text, ElasticConfig& config) {
  const auto value = number_in<double>(text, 1, kMaxFactor);
  config.backoff_factor = value.value_or(config.backoff_factor);
  return value ? "" : absl::StrFormat("give a number from 1 (no backoff) to %g", kMaxFactor);
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      count_entry("minReplicas", "min-replicas", &ElasticConfig::min_replicas),
      count_entry("maxReplicas", "max-replicas", &ElasticConfig::max_replicas),
      count_entry(kIncrementStep, "replica-increment-step", &ElasticConfig::increment_step),
      {{kDiscreteValues, "replica-discrete-values"},
       set_discrete_values,
       [](const ElasticConfig& config) { return absl::StrJoin(config.discrete_values, ","); }},
      time_entry("scalingTimeoutInSeconds", "scaling-timeout", &ElasticConfig::scaling_timeout),
      time_entry("gracefulShutdownTimeoutInSeconds", "graceful-shutdown-timeout",
                 &ElasticConfig::graceful_shutdown_timeout),
      time_entry("faultyScaleDownTimeoutInSeconds", "faulty-scale-down-timeout",
                 &ElasticConfig::faulty_scale_down_timeout),
      time_entry("scaleUpSnoozeTimeInSeconds", "scale-up-snooze-time", &ElasticConfig::scale_up_snooze),
      time_entry("minChangeIntervalInSeconds", "min-change-interval", &ElasticConfig::min_between_changes),
      {{"backoffFactor", "elastic-backoff"},
       set_factor,
       [](const ElasticConfig& config) { return absl::StrFormat("%g", config.backoff_factor); }},
      time_entry("maxBackoffInSeconds", "elastic-max-backoff", &ElasticConfig::max_backoff),
  };
  return all;
}

const Entry* find_entry(const std::string& name) {
  const auto found = std::ranges::find_if(entries(), [&](const Entry& entry) { return entry.known.name == name; });
  return found == entries().end() ? nullptr : &*found;
}

std::string all_names() {
  return absl::StrJoin(policy_names(), ", ",
                       [](std::string* out, const PolicyName& known) { out->append(known.name); });
}

// Reads a file once: takes what is right and lists what is wrong.
class ElasticParser {
 public:
  explicit ElasticParser(std::string file) : file_(std::move(file)) {}

  PolicyFile read(const std::string& text) {
    try {
      const YAML::Node root = YAML::Load(text);
      const bool wrapped = root.IsMap() && root.size() == 1 && root[kWhole].IsDefined();
      const YAML::Node policy = wrapped ? root[kWhole] : root;
      if (!policy.IsMap() || policy.size() == 0) {
        mistake(policy, absl::StrFormat("the file is a map of names and values, or has it under the key `%s`; the "
                                        "names are %s",
                                        kWhole, all_names()));
        return std::move(read_);
      }
      for (const auto& entry : policy) {
        take(entry.first, entry.second);
      }
    } catch (const YAML::Exception& error) {
      mistake_at(error.mark, error.msg);
    }
    return std::move(read_);
  }

 private:
  void mistake_at(const YAML::Mark& mark, const std::string& what) {
    read_.mistakes.push_back(absl::StrFormat("%s:%d: %s", file_, mark.is_null() ? 1 : mark.line + 1, what));
  }
  void mistake(const YAML::Node& node, const std::string& what) { mistake_at(node.Mark(), what); }

  void take(const YAML::Node& key, const YAML::Node& value) {
    const std::string name = key.IsScalar() ? key.Scalar() : "";
    const Entry* entry = find_entry(name);
    if (entry == nullptr) {
      mistake(key, absl::StrFormat("there is no '%s'; the names are %s", name, all_names()));
      return;
    }
    const std::optional<std::string> text = text_of(name, value);
    if (!text) {
      return;
    }
    ElasticConfig ignored;
    if (const std::string wrong = entry->set(*text, ignored); !wrong.empty()) {
      mistake(value, absl::StrFormat("%s is '%s'; %s", name, *text, wrong));
    } else if (!read_.values.emplace(name, *text).second) {
      mistake(key, absl::StrFormat("'%s' is there twice", name));
    }
  }

  std::optional<std::string> text_of(const std::string& name, const YAML::Node& value) {
    if (value.IsScalar()) {
      return value.Scalar();
    }
    if (name != kDiscreteValues) {
      mistake(value, absl::StrFormat("'%s' is one number", name));
      return std::nullopt;
    }
    std::vector<std::string> parts;
    for (const YAML::Node& part : value) {  // none if it is not a list
      if (!value.IsSequence() || !part.IsScalar()) {
        mistake(value, absl::StrFormat("'%s' is a list of numbers, as in [1, 2, 4]", name));
        return std::nullopt;
      }
      parts.push_back(part.Scalar());
    }
    return absl::StrJoin(parts, ",");
  }

  std::string file_;
  PolicyFile read_;
};

}  // namespace

std::span<const PolicyName> policy_names() {
  static const std::vector<PolicyName> names = [] {
    std::vector<PolicyName> all;
    for (const Entry& entry : entries()) {
      all.push_back(entry.known);
    }
    return all;
  }();
  return names;
}

std::string set_policy_value(const std::string& name, const std::string& text, ElasticConfig& config) {
  const Entry* entry = find_entry(name);
  return entry == nullptr ? "the names are " + all_names() : entry->set(text, config);
}

void apply_policy_values(const PolicyValues& values, ElasticConfig& config) {
  const bool steps = values.contains(kIncrementStep);
  const bool discrete = values.contains(kDiscreteValues);
  if (steps && !discrete) {
    config.discrete_values.clear();
  } else if (discrete && !steps) {
    config.increment_step = 1;
  }
  for (const auto& [name, text] : values) {
    set_policy_value(name, text, config);
  }
}

std::vector<std::string> policy_value_mistakes(const PolicyValues& values) {
  std::vector<std::string> found;
  ElasticConfig ignored;
  for (const auto& [name, text] : values) {
    if (find_entry(name) == nullptr) {
      found.push_back(absl::StrFormat("there is no '%s'; the names are %s", name, all_names()));
    } else if (const std::string wrong = set_policy_value(name, text, ignored); !wrong.empty()) {
      found.push_back(absl::StrFormat("%s is '%s'; %s", name, text, wrong));
    }
  }
  return found;
}

PolicyFile parse_policy_file(const std::string& text, const std::string& file) {
  if (text.size() > kMaxPolicyFileBytes) {
    return {{}, {absl::StrFormat("%s:1: the file has more than %d bytes", file, kMaxPolicyFileBytes)}};
  }
  PolicyFile read = ElasticParser(file).read(text);
  return read;
}

PolicyValues policy_values(const ElasticConfig& config) {
  PolicyValues values;
  for (const Entry& entry : entries()) {
    const bool other_way =
        entry.known.name == std::string_view(config.discrete_values.empty() ? kDiscreteValues : kIncrementStep);
    if (!other_way) {
      values[entry.known.name] = entry.text(config);
    }
  }
  return values;
}

uint32_t replicas_on(const JobSpec& spec, uint32_t nodes) {
  return nodes * spec.nproc_per_node / spec.ranks_per_replica;
}

std::vector<std::string> policy_mistakes(const JobSpec& spec, const ElasticConfig& config) {
  std::vector<std::string> found = brain::mistakes(config);
  const uint32_t most = replicas_on(spec, spec.max_nodes);
  if (config.max_replicas > most && config.max_replicas <= ElasticConfig::kMaxReplicas) {
    found.push_back(
        absl::StrFormat("maxReplicas %d is more than %d node%s with %d ranks each can hold, in replicas of %d: give at "
                        "most %d, or start "
                        "the job for more nodes (--nnodes MIN:MAX)",
                        config.max_replicas, spec.max_nodes, spec.max_nodes == 1 ? "" : "s", spec.nproc_per_node,
                        spec.ranks_per_replica, most));
  }
  return found;
}

}  // namespace keepstep::agent
