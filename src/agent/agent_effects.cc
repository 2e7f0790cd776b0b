// Carries out what the brains decided: the coordinator's orders go into this node's brain, and its effects become
// processes, pages and messages.

#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "agent/agent.h"
#include "agent/rings/ring_service.h"
#include "agent/workers/background_writer.h"
#include "base/check.h"
#include "base/clock.h"

namespace keepstep::agent {

using brain::Member;
using brain::WorkerId;

namespace {

constexpr int64_t kGraceNs = 5'000'000'000;  // between SIGTERM and SIGKILL at the end of a job

std::vector<Generation::Holder> pages_of(const AgentCore& core, const std::vector<brain::Holder>& holders) {
  std::vector<Generation::Holder> pages;
  for (const brain::Holder& holder : holders) {
    if (WorkerProcess* const process = core.find(holder.worker); process != nullptr) {
      pages.push_back({holder.rank, holder.worker, &process->page()});
    }
  }
  return pages;
}

// A worker that lost its rank and waits as a spare reads no batches, and must not keep the loader from making room for
// more.
void let_leavers_out(const AgentCore& core, RingService* rings) {
  if (rings == nullptr || !core.config.spec.elastic) {
    return;
  }
  const std::vector<std::shared_ptr<WorkerProcess>> members = core.living_members();
  for (const auto& [id, process] : core.workers) {
    if (!core.is_dead(*process) && process->pid != 0 &&
        std::find(members.begin(), members.end(), process) == members.end()) {
      rings->let_out(process->pid);
    }
  }
}

}  // namespace

void Agent::carry_out(const brain::Effect& effect) {
  if (core_.end.has_value()) {
    return;
  }
  if (std::holds_alternative<brain::Prepare>(effect)) {
    commits_.collect_all();  // while the ranks still belong to the workers that wrote it
  }
  std::visit(
      [this](const auto& each) {
        if constexpr (std::is_same_v<std::decay_t<decltype(each)>, brain::ReleaseNode>) {
          part(each);
        } else if constexpr (!std::is_same_v<std::decay_t<decltype(each)>, brain::Journal>) {
          step(each);
        }
      },
      effect);
  moment_.show();
}

void Agent::step(const brain::NodeEvent& event) {
  for (const brain::NodeEffect& effect : core_.brain.step(event, brain::Time(monotonic_ns()))) {
    std::visit([this](const auto& each) { carry_out(each); }, effect);
  }
}

// The work of our ranks goes on elsewhere, or is no longer needed.
void Agent::part(const brain::ReleaseNode& effect) {
  core_.pump.say(absl::StrFormat("keepstep: node %d has left, and the job goes on without it: %s", core_.config.node,
                                 effect.because));
  elastic_.parted();
  carry_out(brain::EndJob{0, "", ""});
}

void Agent::carry_out(const brain::Tell& effect) { core_.link->send(effect.event); }

// ---- processes ----------------------------------------------------------------------------------------------------

void Agent::carry_out(const brain::StartWorker& effect) {
  const auto& [node, id, spare, because, functions] = effect.spawn;
  auto fail = [&](const Status& status) {
    step(brain::WorkerDied{id, 0, 0, 1, "start", std::string(status.message())});
  };
  auto process = WorkerProcess::create(id, spare, layout_);
  if (!process.ok()) {
    fail(process.status());
    return;
  }
  const bool initial = core_.brain.prepared() == nullptr && !spare && started_ranks_ < core_.config.spec.nproc_per_node;
  auto pipes = core_.pump.open(id, absl::StrFormat("%s%d", spare ? "spare" : "worker", id),
                               initial ? std::optional<uint32_t>(started_ranks_++) : std::nullopt,  // in rank order
                               std::max(core_.brain.identity().generation, 1U));
  if (!pipes.ok()) {
    fail(pipes.status());
    return;
  }
  (*process)->functions = functions;
  (*process)->child_stdout = std::move(pipes->first);
  (*process)->child_stderr = std::move(pipes->second);
  core_.workers[id] = *process;
  if (core_.config.spec.no_python && !programs_.attach()) {
    // A program may never ask for a rank. So it starts once it has one, or once another showed that programs do ask.
    core_.link->send(brain::WorkerParked{id, 0});
  } else {
    starter_->spawn(*process, variables_.of_job());
  }
}

void Agent::carry_out(const brain::KillProcess& effect) {
  WorkerProcess* const process = core_.find(effect.worker);
  if (process == nullptr) {
    return;
  }
  if (!effect.because.empty()) {
    core_.journal.write("kill", core_.brain.identity(), effect.because,
                        {{"worker", int64_t{effect.worker}}, {"pid", int64_t{process->pid}}});
  }
  if (core_.config.spec.no_python && process->pid == 0) {
    step(brain::WorkerDied{effect.worker, 0, SIGKILL, 0, "kill", ""});  // a program that was not started yet
  } else {
    kill_process(*process);
  }
}

void Agent::carry_out(const brain::FreeMemory& effect) { core_.workers.erase(effect.worker); }

// ---- a generation -------------------------------------------------------------------------------------------------

void Agent::carry_out(const brain::SealWords& effect) {
  brain::Sealed sealed{core_.config.node, effect.identity, {}};
  if (const auto found = generations_.find(effect.identity); found != generations_.end()) {
    const std::vector<Generation::Holder> pages = pages_of(core_, effect.holders);
    sealed.words = found->second->seal(pages);
    commits_.keep_losses(pages);
    const Generation::DecidedStep newest = found->second->newest_decided_step();
    sealed.mean_step = newest.step;
    sealed.mean_loss = newest.mean_loss;
    sealed.mean_flags = newest.flags;
  }
  sealed.copies = vaults_.all().copies();
  sealed.parity = vaults_.all().parity();
  core_.link->send(sealed);
}

void Agent::carry_out(const brain::Interrupt& effect) {
  for (const WorkerId id : effect.workers) {
    core_.tell(*core_.workers.at(id), effect.identity, messages::Interrupt{effect.because});
  }
  if (rings_ != nullptr) {
    rings_->ring_bells();
  }
  moment_.is("recovering: " + effect.because);
}

void Agent::carry_out(const brain::Announce& effect) {
  const brain::Decide& decide = effect.decide;
  if (const auto found = generations_.find(decide.identity); found != generations_.end()) {
    found->second->announce(decide.verdict.version, decide.mean_loss, decide.flags);
  }
}

void Agent::carry_out(const brain::Begin& effect) {
  const brain::Prepare& prepare = effect.prepare;
  auto created = Generation::create(prepare, comm_config_);
  if (!created.ok()) {
    core_.stop_job(1, std::string(created.status().message()));
    return;
  }
  std::erase_if(generations_, [&](const auto& each) { return each.first < effect.before; });
  generations_[prepare.identity] = *std::move(created);
  core_.metrics.begin(prepare.identity, prepare.version, prepare.functions);
  commits_.begin();
  variables_.choose_master(prepare);
  store_.set_homes(nodes_of(prepare.table));
  if (background_writer_ != nullptr) {
    const std::vector<brain::NodeId> nodes = nodes_of(prepare.table);
    for (const brain::NodeId node : std::exchange(with_ranks_, nodes)) {
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
        background_writer_->without(node);
      }
    }
  }
  for (const Member& member : prepare.members) {
    if (core_.find(member.worker) == nullptr) {
      continue;
    }
    if (core_.log_watch != nullptr) {
      core_.log_watch->assigned(member.worker, member.rank, monotonic_ns());
    }
    core_.pump.assign(member.worker, prepare.table.locate(member.rank).local_rank, prepare.identity.generation);
  }
}

void Agent::carry_out(const brain::Inherit& effect) {
  const WorkerProcess& from = *core_.workers.at(effect.from);
  WorkerProcess& to = *core_.workers.at(effect.to);
  for (size_t slot = 0; slot < 2; ++slot) {
    const rank::CapsuleSlot& before = from.page().capsule[slot];
    rank::CapsuleSlot& now = to.page().capsule[slot];
    const uint64_t bytes = std::min<uint64_t>(before.bytes.load(), rank::kCapsuleBytes);
    const size_t offset = rank::WorkerLayout::capsule(slot);
    std::memcpy(to.memory.data() + offset, from.memory.data() + offset, bytes);
    now.bytes = bytes;
    now.version_plus_1 = before.version_plus_1.load();
  }
  if (effect.copies && from.kept.valid()) {
    to.kept = Fd(fcntl(from.kept.get(), F_DUPFD_CLOEXEC, 0));
    const int fd = from.kept.get();
    core_.tell(to, core_.brain.identity(), messages::Inherit{}, std::span<const int>(&fd, 1));
  }
}

void Agent::carry_out(const brain::ForgetCapsules& effect) { core_.workers.at(effect.worker)->kept.reset(); }

void Agent::carry_out(const brain::Assign& effect) {
  const brain::Prepare& prepare = *core_.brain.prepared();
  const auto generation = generations_.find(prepare.identity);
  if (generation == generations_.end()) {
    return;  // its page could not be created, and the job is about to end
  }
  const std::shared_ptr<WorkerProcess> process = core_.workers.at(effect.member.worker);
  const Environment rank_variables = variables_.of_rank(effect.member.rank);
  if (core_.config.spec.no_python) {
    if (process->pid == 0) {
      nlohmann::json variables = variables_.of_job();
      variables.update(as_json(rank_variables));
      starter_->spawn(process, variables);
    }
    if (!process->attached) {
      return;  // it gets this when it attaches, if it ever does
    }
  }
  std::vector<int> fds = {generation->second->fd()};
  messages::Prepare message{.rank = effect.member.rank,
                            .version = prepare.version,
                            .newcomer = effect.member.newcomer,
                            .resized = prepare.resized,
                            .entry = effect.entry,
                            .because = prepare.because,
                            .sharding = prepare.sharding.number,
                            .from = prepare.from,
                            .environment = {rank_variables.begin(), rank_variables.end()}};
  for (const Member& each : prepare.members) {
    message.workers.push_back(each.worker);
    message.ranks.push_back(each.rank);
    fds.push_back(core_.workers.at(each.worker)->memory.fd());
  }
  if (core_.config.spec.several_nodes()) {
    for (const brain::RankTable::Entry& each : prepare.table.entries()) {
      message.table.push_back(
          {each.node, text_of(each.endpoint.address), each.endpoint.port_base, each.ranks, each.first_local});
    }
    fds.push_back(core_.config.ports.listeners.at(prepare.table.locate(effect.member.rank).local_rank).get());
    const StatusOr<net::SharedKey> key =
        net::SharedKey::data_of(core_.link->data_secret(), prepare.identity.term, prepare.identity.generation);
    KEEPSTEP_CHECK(key.ok(), "the coordinator gave no secret for the connections between ranks");
    message.data_key = key->hex();
    message.plain_data = core_.link->plain_data();
  }
  core_.tell(*process, prepare.identity, message, fds);
  notice_.tell(*process);
}

void Agent::carry_out(const brain::Forget& effect) {
  if (effect.beyond.has_value()) {
    vaults_.all().drop_beyond(*effect.beyond);
  }
  vaults_.all().drop_before(effect.before);
}

void Agent::carry_out(const brain::ForgetUnused&) { vaults_.all().drop_unused(); }

void Agent::carry_out(const brain::GoOn& effect) {
  const brain::Activate& activate = effect.activate;
  if (effect.first) {
    // Evaluations after that step may be repeated, and logged again.
    core_.metrics.flush(activate.version == 0 ? 0 : activate.version - 1);
    store_.drop_before(activate.identity.generation);
    if (publications_ != nullptr) {
      publications_->begin(activate.version);
    }
    moment_.is(activate.targets.empty() ? "" : "hydrating");
    let_leavers_out(core_, rings_.get());
  }
  const brain::Prepare& prepared = *core_.brain.prepared();
  const messages::Activate message{.version = activate.version,
                                   .sources = activate.sources,
                                   .targets = activate.targets,
                                   .compare = activate.compare,
                                   .copies = vaults_.all().ranks_at(prepared.sharding.number, activate.version),
                                   .copies_from = vaults_.all().ranks_at(prepared.from.number, activate.version),
                                   .parity = vaults_.all().parity_at(activate.version)};
  for (const WorkerId id : effect.workers) {
    core_.tell(*core_.workers.at(id), activate.identity, message);
  }
}

void Agent::carry_out(const brain::HasFormed& effect) {
  moment_.is("");
  if (effect.identity.generation > 1) {
    moment_.recovered();
  }
}

void Agent::carry_out(const brain::TellPause& effect) {
  for (const WorkerId id : effect.workers) {
    core_.tell(*core_.workers.at(id), effect.pause.identity, messages::Pause{effect.pause.stay});
  }
}

// ---- the end ------------------------------------------------------------------------------------------------------

void Agent::carry_out(const brain::TellRelease& effect) {
  core_.metrics.flush(core_.metrics.last_step());  // nothing more will follow; another function would begin with step 1
  for (const WorkerId id : effect.workers) {
    core_.tell(*core_.workers.at(id), effect.release.identity, messages::Release{});
  }
  if (const auto found = generations_.find(effect.release.identity); effect.wake && found != generations_.end()) {
    found->second->cut_collectives_short();
  }
  if (notice_.stopped()) {
    commits_.collect_all();
    notice_.end();
  }
}

void Agent::carry_out(const brain::Close& effect) {
  const brain::EndJob& end = effect.end;
  core_.end = JobEnd{end.exit_code, end.message, end.traceback,
                     end.exit_code == kNoticeExitCode && (notice_.stopped() || notice_.came())};
  if (!generations_.empty()) {  // the newest whose page could be created
    const std::vector<Generation::Holder> pages = pages_of(core_, effect.holders);
    Generation& newest = *generations_.rbegin()->second;
    newest.seal(pages);  // steps cut short now must not be committed
    commits_.keep_losses(pages);
    newest.announce_end();
  }
  commits_.collect_all();
  core_.metrics.flush(core_.metrics.last_step());
  if (end.exit_code == 0) {
    faults_.tell_missed();
  }
  const auto held_back = [this](const WorkerProcess& process) {
    return core_.config.spec.no_python && process.pid == 0;
  };
  for (const auto& [id, process] : core_.workers) {
    if (held_back(*process)) {
      process->child_stdout.reset();  // no other process holds its output open
      process->child_stderr.reset();
    }
  }
  const auto close = [&](WorkerId id) {
    WorkerProcess& process = *core_.workers.at(id);
    if (!held_back(process)) {
      core_.tell(process, effect.identity, messages::End{end.message});
    }
    return !held_back(process);
  };
  for (const WorkerId id : effect.ranks) {
    if (close(id) && core_.workers.at(id)->pid > 0 && end.exit_code != 0 && !core_.end->on_notice) {
      kill(core_.workers.at(id)->pid, SIGTERM);
    }
  }
  for (const WorkerId id : effect.spares) {  // a parked spare has nothing to clean up
    if (close(id)) {
      kill_process(*core_.workers.at(id));
    }
  }
  if (rings_ != nullptr) {
    rings_->ring_bells();
  }
  if (core_.kill_at_ns == 0) {
    core_.kill_at_ns = monotonic_ns() + kGraceNs;
  }
  finish_if_empty();
}

}  // namespace keepstep::agent
