// One line per committed step into metrics.jsonl, exactly once, whoever dies between the commit and the line.
//
// The loss of a step is read from the members' pages as soon as the first of them reports the commit: all have written
// theirs before they voted. What users log for a step may come after the commit, so a line waits until every member
// has reported the next step (or a new generation starts, or the job ends). Values that several ranks log under one
// name count once: the lowest rank's. Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "brain/types.h"
#include "observe/journal.h"

namespace keepstep::agent {

class Metrics {
 public:
  explicit Metrics(observe::Journal& journal) : journal_(journal) {}

  // `loss` is asked for at the first report of a step only. Returns true when the last of `world` ranks reported it.
  bool on_progress(brain::Rank rank, brain::Step step, int64_t committed_ns, size_t world,
                   const std::function<std::optional<double>(brain::Step)>& loss);
  void on_log(brain::Rank rank, brain::Step step, const nlohmann::json& values);
  // All steps up to `version` are committed and nothing more will be logged for them.
  void flush(brain::Version version);
  // The job starts over at `version`: what was logged beyond is no part of its history.
  void rewind(brain::Version version);

  std::optional<double> last_loss() const { return last_loss_; }
  std::optional<double> step_time_s() const { return step_time_s_; }
  brain::Step last_step() const { return last_step_; }
  int64_t last_commit_ns() const { return last_commit_ns_; }

 private:
  struct Line {
    bool committed = false;
    std::set<brain::Rank> ranks;
    int64_t committed_ns = 0;
    std::optional<double> loss;
    std::map<brain::Rank, nlohmann::json> logged;
  };
  void write(brain::Step step, const Line& line);

  observe::Journal& journal_;
  std::map<brain::Step, Line> lines_;
  brain::Version flushed_ = 0;
  std::optional<double> last_loss_;
  std::optional<double> step_time_s_;
  brain::Step last_step_ = 0;
  int64_t last_commit_ns_ = 0;
};

}  // namespace keepstep::agent
