#include "agent/watch/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace keepstep::agent {

bool Metrics::on_progress(brain::Rank rank, brain::Step step, brain::Identity identity, int64_t committed_ns,
                          const std::vector<brain::Rank>& ranks, std::optional<LossPart> part,
                          std::optional<double> mean) {
  if (step <= flushed_ || (identity < identity_ && step > begins_at_)) {
    return false;
  }
  Line& line = lines_[step];
  line.identity = identity;
  line.ranks = ranks;
  line.mean = mean.has_value() ? mean : line.mean;
  line.parts[rank] = part;
  line.committed_ns = std::max(line.committed_ns, committed_ns);
  last_step_ = std::max(last_step_, step);
  if (line.parts.size() != ranks.size()) {
    return false;
  }
  last_loss_ = mean_loss(step, line);
  if (last_commit_ns_ != 0) {
    const double seconds = static_cast<double>(line.committed_ns - last_commit_ns_) * 1e-9;
    constexpr double kKeep = 0.8;  // of the running mean
    step_time_s_ = step_time_s_.has_value() ? kKeep * *step_time_s_ + (1 - kKeep) * seconds : seconds;
  }
  last_commit_ns_ = line.committed_ns;
  flush(step - 1);
  return true;
}

void Metrics::keep(brain::Rank rank, brain::Step step, brain::Identity identity, LossPart part) {
  if (step > flushed_) {
    kept_[step][{identity, rank}] = part;
  }
}

void Metrics::on_log(brain::Rank rank, brain::Step step, std::string values) {
  if (step > flushed_) {
    lines_[step].logged[rank].push_back(std::move(values));
  }
}

void Metrics::flush(brain::Version version) {
  while (!lines_.empty() && lines_.begin()->first <= version) {
    const auto line = lines_.extract(lines_.begin());
    write(line.key(), line.mapped());
  }
  flushed_ = std::max(flushed_, version);
  kept_.erase(kept_.begin(), kept_.upper_bound(version));
}

void Metrics::begin(brain::Identity identity, brain::Version version, uint32_t functions) {
  identity_ = identity;
  functions_ = functions;
  begins_at_ = version;
  if (version >= last_step_) {
    return;
  }
  lines_.erase(lines_.upper_bound(version), lines_.end());
  kept_.erase(kept_.upper_bound(version), kept_.end());
  flushed_ = std::min(flushed_, version);
  last_step_ = std::min(last_step_, version);
  last_commit_ns_ = 0;
}

// Adds in rank order, so that the result has the same bits as `step.loss` on the ranks. std::nullopt if a rank's part
// is missing.
std::optional<double> Metrics::mean_loss(brain::Step step, const Line& line) const {
  if (line.mean.has_value()) {
    return line.mean;
  }
  double sum = 0;
  uint64_t count = 0;
  for (const brain::Rank rank : line.ranks) {
    const auto reported = line.parts.find(rank);
    std::optional<LossPart> part;
    if (reported != line.parts.end()) {
      part = reported->second;
    } else if (part = kept_part(step, line.identity, rank); !part.has_value()) {
      return std::nullopt;
    }
    if (part.has_value()) {
      sum += part->sum;
      count += part->micro_batches;
    }
  }
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

std::optional<LossPart> Metrics::kept_part(brain::Step step, brain::Identity identity, brain::Rank rank) const {
  const auto of_step = kept_.find(step);
  if (of_step == kept_.end()) {
    return std::nullopt;
  }
  const auto kept = of_step->second.find({identity, rank});
  return kept == of_step->second.end() ? std::nullopt : std::optional(kept->second);
}

void Metrics::write(brain::Step step, const Line& line) {
  nlohmann::json members = nlohmann::json::object();
  for (const auto& [rank, objects] : line.logged) {
    nlohmann::json values = nlohmann::json::object();
    for (const std::string& object : objects) {
      values.update(nlohmann::json::parse(object));
    }
    values.update(members);  // lower ranks override
    members = std::move(values);
  }
  if (const std::optional<double> loss = mean_loss(step, line); loss.has_value()) {
    members["loss"] = std::isfinite(*loss) ? nlohmann::json(*loss) : nlohmann::json(absl::StrFormat("%g", *loss));
  }
  if (functions_ > 0) {
    members["function"] = functions_;
  }
  if (line.committed_ns != 0) {
    members["committed_mono"] = static_cast<double>(line.committed_ns) * 1e-9;
  }
  const std::string text = members.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  journal_.metrics(step, text.substr(1, text.size() - 2));
}

}  // namespace keepstep::agent
