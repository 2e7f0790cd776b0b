#include "agent/parts/commits.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"

namespace keepstep::agent {

void Commits::keep_losses(const std::vector<Generation::Holder>& holders) {
  if (core_.brain.prepared()->members.size() < core_.world()) {
    return;  // one node has only a part of the sum; the mean arrives with the votes
  }
  for (const Generation::Holder& holder : holders) {
    for (const rank::LossSlot& slot : holder.page->loss) {
      if (const brain::Step step = slot.step.load(); step != 0) {
        core_.metrics.keep(holder.rank, step, core_.brain.identity(), {slot.sum.load(), slot.micro_batches.load()});
      }
    }
  }
}

void Commits::collect(WorkerProcess& process) {
  const auto on_log = [&](brain::Step step, std::string_view text) {
    if (!nlohmann::json::parse(text, nullptr, false).is_object()) {
      core_.refuse(process, absl::StrFormat("what it logged for step %d is no JSON object", step));
    } else if (const auto rank = core_.rank_of(process); rank.has_value()) {
      core_.metrics.on_log(*rank, step, std::string(text));
    }
  };
  const Status status = process.log.collect(
      process.memory.data() + rank::WorkerLayout::kLog,
      [&](const rank::CommitRecord& record) { on_commit(process, record); }, on_log);
  if (!status.ok()) {
    core_.refuse(process, std::string(status.message()));
  }
}

void Commits::collect_all() {
  for (const auto& [id, process] : core_.workers) {
    collect(*process);
  }
}

void Commits::on_commit(const WorkerProcess& process, const rank::CommitRecord& record) {
  const std::optional<brain::Rank> rank = core_.rank_of(process);
  if (!rank.has_value()) {
    return;
  }
  pace_.note(*rank, record);
  const std::vector<brain::Rank> ranks = core_.ranks_here();
  std::optional<LossPart> part;
  std::optional<double> mean;
  if (record.has_mean) {
    mean = record.mean;
  } else if (record.has_loss && ranks.size() == core_.world()) {
    part = LossPart{record.loss_sum, record.micro_batches};
  }
  const bool complete =
      core_.metrics.on_progress(*rank, record.step, record.identity, record.committed_ns, ranks, part, mean);
  if (!complete) {
    return;
  }
  if (!first_told_ && record.identity == core_.brain.identity()) {
    first_told_ = true;
    core_.step(brain::FormedByCommit{record.identity});  // if another node's rank reported it, a commit is the proof
    core_.journal.write("first_commit", record.identity, "",
                        {{"step", static_cast<int64_t>(record.step)},
                         {"committed_mono", static_cast<double>(core_.metrics.last_commit_ns()) * 1e-9}});
    // If this step is the redo of one in which ranks differed, this shows which rank was right.
    core_.link->send(brain::Progress{record.identity, record.step, record.digest});
  } else if (record.step % 100 == 0) {
    core_.link->send(brain::Progress{record.identity, record.step});
  }
}

}  // namespace keepstep::agent
