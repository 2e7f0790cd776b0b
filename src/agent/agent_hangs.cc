// The agent's part against hangs: what it looks at, and what follows from a suspicion.

#include <chrono>

#include "agent/agent.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

double seconds_of(brain::Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Agent::watch_for_hangs() {
  if (generation_ == nullptr || end_.has_value()) {
    return;
  }
  const brain::Prepare& prepare = generation_->prepare();
  HangWatch::View view{.identity = prepare.identity,
                       .world = prepare.table.world_size(),
                       .version = prepare.version,
                       .trains = active_ && sealed_ < prepare.identity};
  for (const brain::Member& member : prepare.members) {
    const auto it = workers_.find(member.worker);
    if (it != workers_.end() && !it->second->dead && it->second->pid > 0) {
      view.members.emplace_back(member.rank, it->second.get());
    }
  }
  for (const brain::Suspicion& suspicion : hang_watch_.look(view, monotonic_ns())) {
    on_hang(suspicion, prepare.identity);
  }
  if (!config_.spec.several_nodes()) {
    return;
  }
  if (const auto report = hang_watch_.report(); report.has_value()) {
    std::set<brain::NodeId> others;
    for (const brain::RankTable::Entry& entry : prepare.table.entries()) {
      if (entry.node != config_.node && others.insert(entry.node).second) {
        route(entry.node, 'H', report->dump());
      }
    }
  }
}

void Agent::on_hang(const brain::Suspicion& suspicion, brain::Identity identity) {
  const brain::RankProgress& culprit = suspicion.culprit;
  const auto it = workers_.find(culprit.worker);
  if (it == workers_.end()) {
    return;
  }
  const int64_t pid = it->second->pid;
  std::vector<brain::Field> fields = {
      {"worker", int64_t{culprit.worker}},
      {"rank", int64_t{culprit.rank}},
      {"pid", pid},
      {"step", static_cast<int64_t>(culprit.step)},
      {"micro_batch", int64_t{culprit.micro_batch}},
      {"phase", std::string(name(culprit.phase))},
      {"collective", static_cast<int64_t>(culprit.entered)},
      {"stopped", suspicion.stopped},
      {"waiting", std::vector<int64_t>(suspicion.waiting.begin(), suspicion.waiting.end())},
      {"waited_s", seconds_of(suspicion.waited)},
      {"limit_s", seconds_of(suspicion.limit)},
      {"idle_s", seconds_of(suspicion.idle)}};
  if (suspicion.step_time.has_value()) {
    fields.push_back({"step_s", seconds_of(*suspicion.step_time)});
  }
  journal_.write("hang", identity, suspicion.because, std::move(fields));
  // Here, before the kill of a hung worker: whatever should be known of it (its stacks) must be taken now.
  link_->send(brain::WorkerHung{culprit.worker, identity, pid, suspicion.idle, suspicion.because});
}

}  // namespace keepstep::agent
