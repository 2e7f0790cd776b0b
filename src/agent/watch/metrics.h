// Writes one line per committed step to metrics.jsonl, exactly once, even if a process dies between the commit and the
// line.
//
// Each rank reports its part of the loss with the commit. If a rank dies before it can, the part that it wrote into its
// page before the vote is kept when its generation ends. What users log for a step may arrive after the commit, so a
// line waits until every member has reported the next step (or a new generation starts, or the job ends). Of values
// that several ranks log under one name, only the lowest rank's is used. Loop thread only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brain/types.h"
#include "observe/journal.h"

namespace keepstep::agent {

// One rank's part of a step's loss: the sum over its micro-batches, and their number.
struct LossPart {
  double sum = 0;
  uint64_t micro_batches = 0;
};

class Metrics {
 public:
  explicit Metrics(observe::Journal& journal) : journal_(journal) {}

  // Returns true when the last of `ranks` (those of this node, ascending) reported the step. `mean`: over the ranks of
  // all nodes, if there are several; otherwise it is computed from the parts.
  bool on_progress(brain::Rank rank, brain::Step step, brain::Identity identity, int64_t committed_ns,
                   const std::vector<brain::Rank>& ranks, std::optional<LossPart> part,
                   std::optional<double> mean = std::nullopt);
  // What `rank` recorded for `step` in `identity`. Used if the step is committed and the rank never reports it.
  void keep(brain::Rank rank, brain::Step step, brain::Identity identity, LossPart part);
  // `values`: a JSON object as text.
  void on_log(brain::Rank rank, brain::Step step, std::string values);
  // All steps up to `version` are committed and nothing more will be logged for them.
  void flush(brain::Version version);
  // Generation `identity` begins at `version`. What older generations did beyond it is not part of the job's history,
  // even if it is reported only now. `functions`: recoverable functions that are over; the lines of each are flushed
  // first.
  void begin(brain::Identity identity, brain::Version version, uint32_t functions = 0);

  std::optional<double> last_loss() const { return last_loss_; }
  std::optional<double> step_time_s() const { return step_time_s_; }
  brain::Step last_step() const { return last_step_; }
  int64_t last_commit_ns() const { return last_commit_ns_; }

 private:
  struct Line {
    brain::Identity identity;
    std::vector<brain::Rank> ranks;                        // of this node, that take part
    std::optional<double> mean;                            // of all nodes
    std::map<brain::Rank, std::optional<LossPart>> parts;  // of the ranks that reported
    int64_t committed_ns = 0;
    std::map<brain::Rank, std::vector<std::string>> logged;  // objects; the later of two values is used
  };
  std::optional<double> mean_loss(brain::Step step, const Line& line) const;
  std::optional<LossPart> kept_part(brain::Step step, brain::Identity identity, brain::Rank rank) const;
  void write(brain::Step step, const Line& line);

  observe::Journal& journal_;
  std::map<brain::Step, Line> lines_;
  // Also by the generation that ended: the next one finds the same page unchanged, and may end at once.
  std::map<brain::Step, std::map<std::pair<brain::Identity, brain::Rank>, LossPart>> kept_;
  brain::Version flushed_ = 0;
  brain::Identity identity_;      // of the newest generation
  brain::Version begins_at_ = 0;  // where it began
  uint32_t functions_ = 0;
  std::optional<double> last_loss_;
  std::optional<double> step_time_s_;
  brain::Step last_step_ = 0;
  int64_t last_commit_ns_ = 0;
};

}  // namespace keepstep::agent
