// What the brains decided: orders of the coordinator go into this node's brain, and its effects become processes, pages
// and messages.

#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "agent/agent.h"
#include "agent/rings/ring_service.h"
#include "agent/workers/drain_process.h"
#include "agent/workers/ports.h"
#include "base/check.h"
#include "base/clock.h"

namespace keepstep::agent {

using brain::Identity;
using brain::Member;
using brain::WorkerId;
using worker::MessageType;

namespace {

constexpr int64_t kGraceNs = 5'000'000'000;  // between SIGTERM and SIGKILL at the end of a job

// In rank order.
std::vector<brain::NodeId> nodes_of(const brain::RankTable& table) {
  std::vector<brain::NodeId> nodes;
  for (const brain::RankTable::Entry& entry : table.entries()) {
    if (std::ranges::find(nodes, entry.node) == nodes.end()) {
      nodes.push_back(entry.node);
    }
  }
  return nodes;
}

nlohmann::json json_of(const Environment& environment) {
  nlohmann::json result = nlohmann::json::object();
  for (const auto& [name, value] : environment) {
    result[name] = value;
  }
  return result;
}

}  // namespace

void Agent::carry_out(const brain::Effect& effect) {
  if (end_.has_value()) {
    return;
  }
  if (std::holds_alternative<brain::Prepare>(effect)) {
    collect_all();  // while the ranks are those that wrote it
  }
  std::visit(
      [this](const auto& each) {
        if constexpr (std::is_same_v<std::decay_t<decltype(each)>, brain::Part>) {
          part(each);
        } else if constexpr (!std::is_same_v<std::decay_t<decltype(each)>, brain::Journal>) {
          step(each);
        }
      },
      effect);
  update_status();
}

void Agent::step(const brain::NodeEvent& event) {
  for (const brain::NodeEffect& effect : brain_.step(event, brain::Time(monotonic_ns()))) {
    std::visit([this](const auto& each) { carry_out(each); }, effect);
  }
}

void Agent::carry_out(const brain::Tell& effect) { link_->send(effect.event); }

// ---- processes ----------------------------------------------------------------------------------------------------

void Agent::carry_out(const brain::StartWorker& effect) {
  const auto& [node, id, spare, because] = effect.spawn;
  auto fail = [&](const Status& status) {
    step(brain::WorkerDied{id, 0, 0, 1, "start", std::string(status.message())});
  };
  auto process = WorkerProcess::create(id, spare, layout_);
  if (!process.ok()) {
    fail(process.status());
    return;
  }
  const bool initial = brain_.prepared() == nullptr && !spare && started_ranks_ < config_.spec.nproc_per_node;
  auto pipes = pump_.open(id, absl::StrFormat("%s%d", spare ? "spare" : "worker", id),
                          initial ? std::optional<uint32_t>(started_ranks_++) : std::nullopt,  // in rank order
                          std::max(brain_.identity().generation, 1U));
  if (!pipes.ok()) {
    fail(pipes.status());
    return;
  }
  (*process)->child_stdout = std::move(pipes->first);
  (*process)->child_stderr = std::move(pipes->second);
  workers_[id] = *process;
  if (config_.spec.no_python && !programs_attach_) {
    // A program may never ask for a rank, so it starts when it has one; or when another one showed that they do ask.
    link_->send(brain::WorkerParked{id, 0});
  } else {
    starter_->spawn(*process, job_variables());
  }
}

nlohmann::json Agent::job_variables() const {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  nlohmann::json variables = json_of(job_environment(config_.spec, threads != nullptr));
  if (threads != nullptr) {
    variables["OMP_NUM_THREADS"] = threads;  // the zygote runs with one thread; its children need not
  }
  for (const char* name : {"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      variables[name] = value;
    }
  }
  if (!temp_.path().empty()) {
    variables["KEEPSTEP_TEMP"] = temp_.path().string();
  }
  return variables;
}

void Agent::carry_out(const brain::KillProcess& effect) {
  WorkerProcess* const process = find(effect.worker);
  if (process == nullptr) {
    return;
  }
  if (!effect.because.empty()) {
    journal_.write("kill", brain_.identity(), effect.because,
                   {{"worker", int64_t{effect.worker}}, {"pid", int64_t{process->pid}}});
  }
  if (config_.spec.no_python && process->pid == 0) {
    step(brain::WorkerDied{effect.worker, 0, SIGKILL, 0, "kill", ""});  // a program that was held back
  } else {
    kill_process(*process);
  }
}

void Agent::carry_out(const brain::FreeMemory& effect) { workers_.erase(effect.worker); }

WorkerProcess* Agent::find(WorkerId id) const {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : found->second.get();
}

std::optional<brain::Rank> Agent::rank_of(const WorkerProcess& process) const {
  const brain::NodeBrain::Worker* const known = brain_.find(process.id);
  return known == nullptr ? std::nullopt : known->rank;
}

std::vector<brain::Rank> Agent::ranks_here() const {
  std::vector<brain::Rank> ranks;
  if (brain_.prepared() != nullptr) {
    for (const Member& member : brain_.prepared()->members) {
      ranks.push_back(member.rank);
    }
  }
  return ranks;
}

bool Agent::is_dead(const WorkerProcess& process) const {
  const brain::NodeBrain::Worker* const known = brain_.find(process.id);
  return known == nullptr || known->dead;
}

// ---- a generation -------------------------------------------------------------------------------------------------

std::vector<Generation::Holder> Agent::pages_of(const std::vector<brain::Holder>& holders) const {
  std::vector<Generation::Holder> pages;
  for (const brain::Holder& holder : holders) {
    if (WorkerProcess* const process = find(holder.worker); process != nullptr) {
      pages.push_back({holder.rank, holder.worker, &process->page()});
    }
  }
  return pages;
}

void Agent::carry_out(const brain::SealWords& effect) {
  brain::Sealed sealed{config_.node, effect.identity, {}};
  if (const auto found = generations_.find(effect.identity); found != generations_.end()) {
    const std::vector<Generation::Holder> pages = pages_of(effect.holders);
    sealed.words = found->second->seal(pages);
    keep_losses(pages);
    const Generation::Outcome newest = found->second->newest_outcome();
    sealed.mean_step = newest.step;
    sealed.mean_loss = newest.mean_loss;
    sealed.mean_flags = newest.flags;
  }
  sealed.copies = vaults_.copies();
  sealed.parity = vaults_.parity();
  link_->send(sealed);
}

void Agent::carry_out(const brain::Interrupt& effect) {
  for (const WorkerId id : effect.workers) {
    tell(*workers_.at(id), MessageType::kInterrupt, effect.identity, {{"because", effect.because}});
  }
  if (rings_ != nullptr) {
    rings_->ring_bells();
  }
  note_ = "recovering: " + effect.because;
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
    link_->send(brain::StopRequested{1, std::string(created.status().message())});
    return;
  }
  std::erase_if(generations_, [&](const auto& each) { return each.first < effect.before; });
  generations_[prepare.identity] = *std::move(created);
  metrics_.begin(prepare.identity, prepare.version);
  first_commit_told_ = false;
  choose_master(prepare);
  carry_out(store_.set_homes(nodes_of(prepare.table)));
  if (drain_ != nullptr) {
    const std::vector<brain::NodeId> nodes = nodes_of(prepare.table);
    for (const brain::NodeId node : std::exchange(with_ranks_, nodes)) {
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
        drain_->without(node);
      }
    }
  }
  for (const Member& member : prepare.members) {
    if (find(member.worker) == nullptr) {
      continue;
    }
    if (log_watch_ != nullptr) {
      log_watch_->assigned(member.worker, member.rank, monotonic_ns());
    }
    pump_.assign(member.worker, prepare.table.place(member.rank).local_rank, prepare.identity.generation);
  }
}

void Agent::carry_out(const brain::Inherit& effect) {
  const WorkerProcess& from = *workers_.at(effect.from);
  WorkerProcess& to = *workers_.at(effect.to);
  for (size_t slot = 0; slot < 2; ++slot) {
    const worker::CapsuleSlot& before = from.page().capsule[slot];
    worker::CapsuleSlot& now = to.page().capsule[slot];
    const uint64_t bytes = std::min<uint64_t>(before.bytes.load(), worker::kCapsuleBytes);
    const size_t offset = worker::WorkerLayout::capsule(slot);
    std::memcpy(to.memory.data() + offset, from.memory.data() + offset, bytes);
    now.bytes = bytes;
    now.version_plus_1 = before.version_plus_1.load();
  }
  if (effect.copies && from.kept.valid()) {
    to.kept = Fd(fcntl(from.kept.get(), F_DUPFD_CLOEXEC, 0));
    const int fd = from.kept.get();
    tell(to, MessageType::kInherit, brain_.identity(), nlohmann::json::object(), std::span<const int>(&fd, 1));
  }
}

void Agent::carry_out(const brain::ForgetCapsules& effect) { workers_.at(effect.worker)->kept.reset(); }

// A store that a script opens itself at MASTER_PORT must not meet the sockets of the generation before. With several
// nodes all must come to the same port without asking: the node of rank 0 keeps some behind those of its ranks.
void Agent::choose_master(const brain::Prepare& prepare) {
  master_addr_ = config_.spec.master_addr;
  master_port_ = config_.spec.master_port;
  if (config_.spec.several_nodes()) {
    const brain::RankTable::Entry& first = prepare.table.entries().front();
    if (master_addr_.empty()) {
      master_addr_ = text_of(first.endpoint.address);
    }
    if (master_port_ == 0) {
      master_port_ = static_cast<uint16_t>(first.endpoint.port_base + config_.spec.nproc_per_node +
                                           prepare.identity.generation % kMasterPorts);
    }
  } else if (master_port_ == 0) {
    master_port_ = free_port();
  }
}

RankAssignment Agent::assignment_of(brain::Rank rank) const {
  const brain::Prepare& prepare = *brain_.prepared();
  const brain::RankTable::Place place = prepare.table.place(rank);
  RankAssignment assignment;
  assignment.rank = rank;
  assignment.local_rank = place.local_rank;
  const std::vector<brain::NodeId> nodes = nodes_of(prepare.table);
  assignment.group_rank = static_cast<uint32_t>(std::ranges::find(nodes, place.node) - nodes.begin());
  assignment.world = prepare.table.world_size();
  assignment.local_world = static_cast<uint32_t>(prepare.members.size());
  assignment.groups = static_cast<uint32_t>(nodes.size());
  assignment.generation = prepare.identity.generation;
  assignment.restarts = prepare.restarts;
  assignment.master_addr = master_addr_;
  assignment.master_port = master_port_;
  return assignment;
}

void Agent::carry_out(const brain::Assign& effect) {
  const brain::Prepare& prepare = *brain_.prepared();
  const auto generation = generations_.find(prepare.identity);
  if (generation == generations_.end()) {
    return;  // its page could not be made, and the job is about to end
  }
  const std::shared_ptr<WorkerProcess> process = workers_.at(effect.member.worker);
  const RankAssignment assignment = assignment_of(effect.member.rank);
  const nlohmann::json rank_variables = json_of(rank_environment(config_.spec, assignment));
  if (config_.spec.no_python) {
    if (process->pid == 0) {
      nlohmann::json variables = job_variables();
      variables.update(rank_variables);
      starter_->spawn(process, variables);
    }
    if (!process->attached) {
      return;  // it gets this when it attaches, if it ever does
    }
  }
  std::vector<int> fds = {generation->second->fd()};
  nlohmann::json ids = nlohmann::json::array();
  nlohmann::json ranks = nlohmann::json::array();
  for (const Member& each : prepare.members) {
    ids.push_back(each.worker);
    ranks.push_back(each.rank);
    fds.push_back(workers_.at(each.worker)->memory.fd());
  }
  nlohmann::json body = {{"rank", effect.member.rank},
                         {"version", prepare.version},
                         {"workers", ids},
                         {"newcomer", effect.member.newcomer},
                         {"entry", effect.entry},
                         {"because", prepare.because},
                         {"resized", prepare.resized},
                         {"sharding", prepare.sharding.number},
                         {"from", {prepare.from.number, prepare.from.world}},
                         {"environment", rank_variables}};
  if (config_.spec.several_nodes()) {
    body["ranks"] = std::move(ranks);
    body["nodes"] = nlohmann::json::array();
    for (const brain::RankTable::Entry& each : prepare.table.entries()) {
      body["nodes"].push_back(
          {each.node, text_of(each.endpoint.address), each.endpoint.port_base, each.ranks, each.first_local});
    }
    fds.push_back(config_.ports.listeners.at(assignment.local_rank).get());
    const StatusOr<net::SharedKey> key =
        net::SharedKey::data_of(link_->data_secret(), prepare.identity.term, prepare.identity.generation);
    KEEPSTEP_CHECK(key.ok(), "the coordinator gave no secret for the connections between ranks");
    body["data_key"] = key->hex();
    body["data_plane"] = link_->plain_data() ? "plain" : "tls";
  }
  tell(*process, MessageType::kPrepare, prepare.identity, std::move(body), fds);
  tell_notice(*process);
}

void Agent::carry_out(const brain::Forget& effect) {
  if (effect.beyond.has_value()) {
    vaults_.drop_beyond(*effect.beyond);
  }
  vaults_.drop_before(effect.before);
}

void Agent::carry_out(const brain::ForgetUnused&) { vaults_.drop_unused(); }

void Agent::carry_out(const brain::GoOn& effect) {
  const brain::Activate& activate = effect.activate;
  if (effect.first) {
    // What was evaluated after that step may be evaluated again, and logged.
    metrics_.flush(activate.version == 0 ? 0 : activate.version - 1);
    store_.drop_before(activate.identity.generation);
    note_ = activate.targets.empty() ? "" : "hydrating";
    let_leavers_out();
  }
  const brain::Prepare& prepared = *brain_.prepared();
  nlohmann::json parity = nlohmann::json::array();
  for (const brain::ParityBlock& block : vaults_.parity_at(activate.version)) {
    parity.push_back({{"members", block.members}, {"row", block.row}});
  }
  for (const WorkerId id : effect.workers) {
    tell(*workers_.at(id), MessageType::kActivate, activate.identity,
         {{"version", activate.version},
          {"sources", activate.sources},
          {"targets", activate.targets},
          {"compare", activate.compare},
          {"copies", vaults_.ranks_at(prepared.sharding.number, activate.version)},
          {"copies_from", vaults_.ranks_at(prepared.from.number, activate.version)},
          {"parity", parity}});
  }
}

void Agent::carry_out(const brain::HasFormed& effect) {
  note_.clear();
  if (effect.identity.generation > 1) {
    recoveries_ += brain_.prepared()->resized ? 0 : 1;
    say_recovered();
  }
}

void Agent::carry_out(const brain::TellPause& effect) {
  for (const WorkerId id : effect.workers) {
    tell(*workers_.at(id), MessageType::kPause, effect.pause.identity,
         {{"because", effect.pause.because}, {"stay", effect.pause.stay}});
  }
}

// ---- the end ------------------------------------------------------------------------------------------------------

void Agent::carry_out(const brain::TellRelease& effect) {
  for (const WorkerId id : effect.workers) {
    tell(*workers_.at(id), MessageType::kRelease, effect.release.identity, nlohmann::json::object());
  }
  if (const auto found = generations_.find(effect.release.identity); effect.drain && found != generations_.end()) {
    found->second->drain();
  }
  end_on_notice();
}

void Agent::carry_out(const brain::Close& effect) {
  const brain::EndJob& end = effect.end;
  end_ = JobEnd{end.exit_code, end.message, end.traceback,
                end.exit_code == kNoticeExitCode && (stopped_on_notice_ || !notice_.empty())};
  if (!generations_.empty()) {  // the newest whose page could be made
    const std::vector<Generation::Holder> pages = pages_of(effect.holders);
    Generation& newest = *generations_.rbegin()->second;
    newest.seal(pages);  // what is drained now must not be committed
    keep_losses(pages);
    newest.announce_end();
  }
  collect_all();
  metrics_.flush(metrics_.last_step());
  const auto held_back = [this](const WorkerProcess& process) { return config_.spec.no_python && process.pid == 0; };
  for (const auto& [id, process] : workers_) {
    if (held_back(*process)) {
      process->child_stdout.reset();  // no other process holds its output open
      process->child_stderr.reset();
    }
  }
  const auto close = [&](WorkerId id) {
    WorkerProcess& process = *workers_.at(id);
    if (!held_back(process)) {
      tell(process, MessageType::kEnd, effect.identity, {{"message", end.message}});
    }
    return !held_back(process);
  };
  for (const WorkerId id : effect.ranks) {
    if (close(id) && workers_.at(id)->pid > 0 && end.exit_code != 0 && !end_->on_notice) {
      kill(workers_.at(id)->pid, SIGTERM);
    }
  }
  for (const WorkerId id : effect.spares) {  // a parked spare has nothing to clean up
    if (close(id)) {
      kill_process(*workers_.at(id));
    }
  }
  if (rings_ != nullptr) {
    rings_->ring_bells();
  }
  if (kill_at_ns_ == 0) {
    kill_at_ns_ = monotonic_ns() + kGraceNs;
  }
  finish_if_empty();
}

}  // namespace keepstep::agent
