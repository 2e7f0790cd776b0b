#include "agent/parts/hangs.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "agent/parts/worker_stacks.h"
#include "base/clock.h"

namespace keepstep::agent {
namespace {

constexpr int64_t kTellPerNodeNs = 10'000'000;
constexpr int64_t kTellAtMostNs = 700'000'000;  // a report is valid for a second (hang_watch.cc)
constexpr std::chrono::milliseconds kStacksTime{1500};
constexpr const char* kLeaveTogether =
    "All ranks must leave the loop after the same step: decide by what all know (step.loss after step.commit), or "
    "agree, as in flag = torch.tensor([float(stop)]); torch.distributed.all_reduce(flag); if flag.item(): break";

double seconds_of(brain::Time time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Hangs::watch() {
  if (core_.end.has_value()) {
    return;
  }
  if (core_.brain.prepared() == nullptr) {
    watch_.look({}, monotonic_ns());
    return;
  }
  const brain::Prepare& prepare = *core_.brain.prepared();
  HangWatch::View view{.identity = prepare.identity,
                       .world = prepare.table.world_size(),
                       .version = prepare.version,
                       .trains = core_.brain.active() && !core_.brain.sealed()};
  for (const brain::Member& member : prepare.members) {
    const auto it = core_.workers.find(member.worker);
    if (it != core_.workers.end() && !core_.is_dead(*it->second) && it->second->pid > 0) {
      view.members.emplace_back(member.rank, it->second.get());
    }
  }
  for (const brain::Suspicion& suspicion : watch_.look(view, monotonic_ns())) {
    on_hang(suspicion, prepare.identity);
  }
  for (const brain::EarlyLeaver& leaver : watch_.left()) {
    on_left_early(leaver, prepare.identity);
  }
  if (!core_.config.spec.several_nodes()) {
    return;
  }
  std::set<brain::NodeId> others;
  for (const brain::RankTable::Entry& entry : prepare.table.entries()) {
    if (entry.node != core_.config.node) {
      others.insert(entry.node);
    }
  }
  // Every node reports to every other; with many nodes less often, so that the coordinator can handle it.
  const int64_t now_ns = monotonic_ns();
  const int64_t every_ns = std::min<int64_t>(static_cast<int64_t>(others.size()) * kTellPerNodeNs, kTellAtMostNs);
  if (now_ns - told_ns_ < every_ns) {
    return;
  }
  if (const auto report = watch_.report(); report.has_value()) {
    told_ns_ = now_ns;
    for (const brain::NodeId node : others) {
      core_.route(node, *report);
    }
  }
}

Status Hangs::on_report(brain::NodeId from, const messages::WaitingRanks& report) {
  return watch_.on_report(from, report, monotonic_ns());
}

void Hangs::on_left_early(const brain::EarlyLeaver& leaver, brain::Identity identity) {
  core_.journal.write("left_early", identity, leaver.because,
                      {{"worker", int64_t{leaver.rank.worker}},
                       {"rank", int64_t{leaver.rank.rank}},
                       {"step", static_cast<int64_t>(leaver.after)},
                       {"waiting", std::vector<int64_t>(leaver.waiting.begin(), leaver.waiting.end())},
                       {"waiting_step", static_cast<int64_t>(leaver.step)},
                       {"for_ever", leaver.returned()}});
  if (!leaver.returned()) {
    core_.pump.say("keepstep: " + leaver.because + ". " + kLeaveTogether);
    return;
  }
  core_.link->send(brain::WorkerFaulted{leaver.rank.worker, identity, leaver.after,
                                        leaver.because + ", which it never reaches. " + kLeaveTogether, "", true, false,
                                        false});
}

void Hangs::on_hang(const brain::Suspicion& suspicion, brain::Identity identity) {
  const brain::RankProgress& culprit = suspicion.culprit;
  const auto it = core_.workers.find(culprit.worker);
  if (it == core_.workers.end()) {
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
  core_.journal.write("hang", identity, suspicion.because, fields);
  const brain::WorkerHung hung{culprit.worker, identity, pid, suspicion.idle, suspicion.because};
  if (core_.config.spec.journal_dir.empty() || core_.config.spec.no_python) {
    core_.link->send(hung);
    return;
  }
  // Stacks can be taken only while the process lives.
  StackLimits limits;
  limits.time = kStacksTime;
  take_stacks_of(core_, {it->second}, limits, [this, hung, culprit](const StatusOr<std::vector<RankStacks>>& stacks) {
    if (stacks.ok()) {
      write_stacks(absl::StrFormat("gen%d.rank%d.txt", hung.identity.generation, culprit.rank), *stacks);
    }
    core_.link->send(hung);
  });
}

// A journal that cannot be written to has already reported that.
void Hangs::write_stacks(const std::string& file, const std::vector<RankStacks>& stacks) {
  const std::filesystem::path folder = std::filesystem::path(core_.config.spec.journal_dir) / "stacks";
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  std::ofstream(folder / file) << stacks_as_text(stacks);
}

}  // namespace keepstep::agent
