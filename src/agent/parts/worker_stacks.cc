#include "agent/parts/worker_stacks.h"

#include <utility>

namespace keepstep::agent {

RankFacts facts_of(const AgentCore& core, const WorkerProcess& process) {
  RankFacts facts{core.rank_of(process), process.id, 0, ""};
  const brain::StepWord word = brain::unpack_step_word(process.page().word.load());
  if (facts.rank.has_value() && word.identity.generation != 0) {
    facts.step = word.step;
  }
  return facts;
}

void take_stacks_of(const AgentCore& core, const std::vector<std::shared_ptr<WorkerProcess>>& processes,
                    const StackLimits& limits, std::function<void(StatusOr<std::vector<RankStacks>>)> done) {
  const StatusOr<std::string> py_spy = find_py_spy(core.config.spec.python);
  if (!py_spy.ok()) {
    done(py_spy.status());
    return;
  }
  std::vector<RankStacks> taken;
  std::vector<pid_t> pids;
  for (const auto& process : processes) {
    taken.push_back({facts_of(core, *process), {}});
    pids.push_back(process->pid);
  }
  take_stacks(*core.loop, *py_spy, pids, limits,
              [taken = std::move(taken), done = std::move(done)](std::vector<ProcessStacks> stacks) mutable {
                for (size_t i = 0; i < stacks.size(); ++i) {
                  taken[i].stacks = std::move(stacks[i]);
                }
                done(std::move(taken));
              });
}

}  // namespace keepstep::agent
