#include "agent/agent.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "agent/drain_process.h"
#include "agent/ports.h"
#include "agent/ring_service.h"
#include "agent/torchrun_env.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/terminal_text.h"
#include "comm/tcp/tcp_transport.h"
#include "worker/ring_link.h"

namespace keepstep::agent {

using brain::Identity;
using brain::Member;
using brain::WorkerId;
using worker::MessageType;

namespace {

constexpr std::chrono::seconds kDrainGrace{12};  // it lets go of its places: one that is not reached takes 10 s
constexpr int64_t kGraceNs = 5'000'000'000;      // between SIGTERM and SIGKILL at the end of a job

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

comm::CommConfig comm_config(const JobSpec& spec) {
  comm::CommConfig config;
  config.max_world = spec.most_ranks();
  config.max_local = spec.nproc_per_node;
  return config;
}

uint64_t shared_memory_bytes(const JobSpec& spec) {
  const comm::CommConfig config = comm_config(spec);
  return worker::WorkerLayout(config).bytes * (spec.nproc_per_node + spec.spares) +
         2 * worker::generation_page_bytes(config);
}

Agent::Agent(AgentConfig config, observe::Journal& journal, OutputPump& pump, observe::StatusLine& status)
    : config_(std::move(config)),
      journal_(journal),
      pump_(pump),
      status_(status),
      comm_config_(comm_config(config_.spec)),
      layout_(comm_config_),
      store_(config_.node),
      metrics_(journal),
      hang_watch_(config_.spec.hang) {
  if (config_.spec.elastic) {
    grace_ = config_.spec.elastic->graceful_shutdown_timeout;
    policy_.emplace(*config_.spec.elastic);
  }
}

Agent::~Agent() = default;

StatusOr<JobEnd> Agent::run(const sigset_t& signals) {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return errno_status("become the subreaper of the workers");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(loop_, EventLoop::create());
  memory_tier_ = std::make_unique<MemoryTier>(loop_, vaults_);
  vault_maker_ = std::make_unique<VaultMaker>(loop_, vaults_);
  signal_fd_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  KEEPSTEP_RETURN_IF_ERROR(loop_->watch(signal_fd_.get(), [this] { on_signal(); }));
  open_door();
  open_endpoint();
  open_temp();
  open_rings();
  open_drain();
  starter_ = std::make_unique<Starter>(
      *loop_, config_.spec,
      Starter::Callbacks{[this](WorkerId worker, pid_t pid, Fd pidfd, const std::string& how) {
                           on_started(worker, pid, std::move(pidfd), how);
                         },
                         [this](WorkerId worker, const std::string& why) {
                           link_->send(brain::WorkerDied{worker, 0, 0, 1, "start", why});
                         },
                         [this](const std::string& event, const std::string& why) { journal_.write(event, {}, why); }});
  KEEPSTEP_RETURN_IF_ERROR(starter_->start());
  if (!config_.spec.log_rules.empty()) {
    log_watch_ = std::make_shared<LogWatch>(config_.spec.log_rules);
    pump_.watch(
        [watch = log_watch_](WorkerId worker, std::string_view lines) { watch->lines(worker, lines, monotonic_ns()); });
  }
  write_memory();
  StatusOr<std::unique_ptr<CoordinatorLink>> link = attend();
  if (!link.ok()) {
    starter_->stop();
    if (signals_ > 0) {
      return *end_;
    }
    return link.status();
  }
  link_ = *std::move(link);
  config_.seat.reset();
  introduce();
  watch_health();
  loop_->every(std::chrono::milliseconds(100), [this] { periodic(); });
  loop_->run();
  pump_.finish();
  apply_log_rules();  // to what the ranks said last
  door_.reset();
  if (config_.take_commands) {
    config_.take_commands(nullptr);
  }
  rings_.reset();
  memory_tier_.reset();
  health_watch_.reset();
  if (drain_ != nullptr && !gives_up_) {
    drain_->end(kDrainGrace, signal_fd_.get());
  }
  drain_.reset();
  if (gives_up_) {
    // Without a goodbye: to the coordinator a node that says one has done its part, and this one is lost.
    starter_->stop();
    temp_.remove_all();
    std::fprintf(stderr, "keepstep: %s\n", terminal_text(end_->message).c_str());
    journal_.flush(observe::Journal::kGoodbye);
    _exit(end_->exit_code);
  }
  refused_by_0_ ? link_->abandon() : link_->close();
  starter_->stop();
  return *end_;
}

void Agent::open_rings() {
  rings_socket_ = std::filesystem::absolute(temp_.path() / "rings");
  auto rings = RingService::open(*loop_, rings_socket_, [this](const RingService::News& news) {
    journal_.write(news.event, {}, news.because,
                   {{"ring", news.ring}, {"batch", static_cast<int64_t>(news.batch)}, {"pid", int64_t{news.pid}}});
  });
  if (!rings.ok()) {
    rings_socket_.clear();
    spdlog::warn("keepstep.data.cached will not work in this job: {}", std::string(rings.status().message()));
    return;
  }
  rings_ = *std::move(rings);
}

void Agent::open_drain() {
  drain_socket_ = std::filesystem::absolute(temp_.path() / "drain");
  auto drain = DrainProcess::open(
      *loop_, drain_socket_, config_.spec.python, config_.node,
      {[this](const std::string& event, const std::string& because) { journal_.write(event, {}, because); },
       [this](brain::Version version, uint32_t generation) { link_->send(brain::Saved{version, generation}); },
       [this](brain::NodeId to, const std::string& message) { route(to, 'D', message); }});
  if (!drain.ok()) {
    drain_socket_.clear();
    spdlog::warn("run.checkpoint will not work in this job: {}", std::string(drain.status().message()));
    return;
  }
  drain_ = *std::move(drain);
}

void Agent::open_temp() {
  StatusOr<TempFolder> folder = TempFolder::create();
  if (!folder.ok()) {
    spdlog::warn("killed workers may leave temporary files: {}", std::string(folder.status().message()));
    return;
  }
  temp_ = *std::move(folder);
}

// What the ranks' shared memory is for; it is allocated when a worker starts and does not grow.
void Agent::write_memory() {
  const auto bytes = [](size_t value) { return static_cast<int64_t>(value); };
  const uint64_t elsewhere = config_.spec.most_ranks() - config_.spec.nproc_per_node;
  const comm::MostSockets sockets = comm::most_sockets(elsewhere);
  journal_.write("memory", {}, "shared memory of this node, the same for the job's whole life",
                 {{"connections_per_rank", bytes(sockets.connections)},
                  {"bytes_per_connection", bytes(sockets.bytes_per_connection)},
                  {"sockets", bytes(config_.spec.nproc_per_node * sockets.connections * sockets.bytes_per_connection)},
                  {"workers", int64_t{config_.spec.nproc_per_node + config_.spec.spares}},
                  {"bytes_per_worker", bytes(layout_.bytes)},
                  {"arena", bytes(comm::arena_bytes(comm_config_))},
                  {"capsules", bytes(2 * worker::kCapsuleBytes)},
                  {"logs", bytes(worker::kLogRingBytes)},
                  {"hydration", bytes(state::region_bytes())},
                  {"generation_page", bytes(worker::generation_page_bytes(comm_config_))},
                  {"total", bytes(shared_memory_bytes(config_.spec))}});
}

void Agent::on_signal() {
  signalfd_siginfo info{};
  if (read(signal_fd_.get(), &info, sizeof info) != sizeof info) {
    return;
  }
  const int number = static_cast<int>(info.ssi_signo);
  if (leave_on(number) || (is_notice(config_.spec, number) && on_notice(number))) {
    return;
  }
  const char* name = strsignal(static_cast<int>(info.ssi_signo));
  if (++signals_ == 1) {
    link_->send(brain::StopRequested{128 + static_cast<int>(info.ssi_signo), absl::StrFormat("stopped by %s", name)});
  }
  if (signals_ > 1 || end_.has_value()) {
    kill_at_ns_ = monotonic_ns();
    if (!end_.has_value()) {
      carry_out(brain::EndJob{128 + static_cast<int>(info.ssi_signo), "stopped at once by a second signal", ""});
    }
    periodic();
  }
}

void Agent::carry_out(const brain::Effect& effect) {
  if (end_.has_value()) {
    return;
  }
  std::visit(
      [this](const auto& each) {
        using T = std::decay_t<decltype(each)>;
        if constexpr (std::is_same_v<T, brain::Spawn>) {
          spawn(each);
        } else if constexpr (std::is_same_v<T, brain::Seal>) {
          seal(each);
        } else if constexpr (std::is_same_v<T, brain::Decide>) {
          decide(each);
        } else if constexpr (std::is_same_v<T, brain::Prepare>) {
          prepare(each);
        } else if constexpr (std::is_same_v<T, brain::Activate>) {
          activate(each);
        } else if constexpr (std::is_same_v<T, brain::Kill>) {
          kill_worker(each);
        } else if constexpr (std::is_same_v<T, brain::Pause>) {
          pause(each);
        } else if constexpr (std::is_same_v<T, brain::Part>) {
          part(each);
        } else if constexpr (std::is_same_v<T, brain::Release>) {
          release(each);
        } else if constexpr (std::is_same_v<T, brain::EndJob>) {
          end_job(each);
        }
      },
      effect);
  update_status();
}

void Agent::spawn(const brain::Spawn& effect) {
  if (workers_.contains(effect.worker)) {
    return;
  }
  auto fail = [&](const Status& status) {
    link_->send(brain::WorkerDied{effect.worker, 0, 0, 1, "start", std::string(status.message())});
  };
  auto process = WorkerProcess::create(effect.worker, effect.spare, layout_);
  if (!process.ok()) {
    fail(process.status());
    return;
  }
  const bool initial = generation_ == nullptr && !effect.spare && started_ranks_ < config_.spec.nproc_per_node;
  auto pipes = pump_.open(effect.worker, absl::StrFormat("%s%d", effect.spare ? "spare" : "worker", effect.worker),
                          initial ? std::optional<uint32_t>(started_ranks_++) : std::nullopt,  // in rank order
                          generation_ == nullptr ? 1 : generation_->identity().generation);
  if (!pipes.ok()) {
    fail(pipes.status());
    return;
  }
  (*process)->child_stdout = std::move(pipes->first);
  (*process)->child_stderr = std::move(pipes->second);
  workers_[effect.worker] = *process;
  if (config_.spec.no_python && !programs_attach_) {
    // A program may never ask for a rank, so it starts when it has one; or when another one showed that they do ask.
    link_->send(brain::WorkerParked{effect.worker, 0});
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

std::vector<Generation::Holder> Agent::holders() const {
  std::vector<Generation::Holder> holders;
  for (const Member& member : generation_->prepare().members) {
    if (const auto it = workers_.find(member.worker); it != workers_.end()) {
      holders.push_back({member.rank, member.worker, &it->second->page()});
    }
  }
  return holders;
}

void Agent::seal(const brain::Seal& effect) {
  if (generation_ == nullptr || generation_->identity() < effect.identity) {
    // A generation that we never heard of has no words here; what lies here of shards counts all the same.
    sealed_ = std::max(sealed_, effect.identity);
    brain::Sealed nothing{config_.node, effect.identity, {}};
    nothing.copies = vaults_.copies();
    nothing.parity = vaults_.parity();
    link_->send(nothing);
    return;
  }
  if (generation_->identity() != effect.identity) {
    return;
  }
  sealed_ = effect.identity;
  brain::Sealed sealed{config_.node, effect.identity, generation_->seal(holders())};
  keep_losses();
  const Generation::Outcome newest = generation_->newest_outcome();
  sealed.mean_step = newest.step;
  sealed.mean_loss = newest.mean_loss;
  sealed.mean_flags = newest.flags;
  sealed.copies = vaults_.copies();
  sealed.parity = vaults_.parity();
  link_->send(sealed);
  for (const auto& process : living_members()) {
    tell(*process, MessageType::kInterrupt, effect.identity, {{"because", effect.because}});
  }
  if (rings_ != nullptr) {
    rings_->ring_bells();
  }
  note_ = "recovering: " + effect.because;
}

void Agent::kill_worker(const brain::Kill& effect) {
  const auto it = workers_.find(effect.worker);
  if (config_.spec.no_python && it != workers_.end() && it->second->pid == 0) {
    workers_.erase(it);  // a program that was held back; below
    link_->send(brain::WorkerDied{effect.worker, 0, SIGKILL, 0, "kill", ""});
  } else if (it != workers_.end() && !it->second->gone) {
    kill_process(*it->second);
  } else {
    link_->send(brain::WorkerDied{effect.worker, 0, SIGKILL, 0, "kill", ""});  // it is gone already: say so again
  }
}

void Agent::decide(const brain::Decide& effect) {
  for (Generation* generation : {generation_.get(), previous_.get()}) {
    if (generation != nullptr && generation->identity() == effect.identity) {
      generation->announce(effect.verdict.version, effect.mean_loss, effect.flags);
    }
  }
}

void Agent::prepare(const brain::Prepare& effect) {
  if (effect.identity <= sealed_ || (generation_ != nullptr && effect.identity < generation_->identity())) {
    return;
  }
  if (generation_ == nullptr || generation_->identity() != effect.identity) {
    auto created = Generation::create(effect, comm_config_);
    if (!created.ok()) {
      link_->send(brain::StopRequested{1, std::string(created.status().message())});
      return;
    }
    collect_all();  // while the ranks are those that wrote it
    metrics_.begin(effect.identity, effect.version);
    previous_ = std::move(generation_);
    generation_ = *std::move(created);
    active_ = false;
    first_commit_told_ = false;
    choose_master(effect);
    carry_out(store_.set_homes(nodes_of(effect.table)));
    if (drain_ != nullptr) {
      const std::vector<brain::NodeId> nodes = nodes_of(effect.table);
      for (const brain::NodeId node : std::exchange(with_ranks_, nodes)) {
        if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
          drain_->without(node);
        }
      }
    }
    ranks_here_.clear();
    for (const Member& member : effect.members) {
      ranks_here_.push_back(member.rank);
    }
    if (effect.resized) {
      resized_ = effect.identity;
    }
    for (auto& [id, process] : workers_) {
      process->rank.reset();
    }
    for (const Member& member : effect.members) {
      const auto it = workers_.find(member.worker);
      if (it == workers_.end()) {
        continue;
      }
      it->second->rank = member.rank;
      it->second->had_rank = true;
      if (effect.resized) {
        it->second->kept.reset();  // of ranks of another world
      }
      const bool builds = member.newcomer || effect.sharding != effect.from;  // which may take long
      it->second->interrupted_at_ns = builds ? 0 : monotonic_ns();
      if (log_watch_ != nullptr) {
        log_watch_->assigned(member.worker, member.rank, monotonic_ns());
      }
      pump_.assign(member.worker, effect.table.place(member.rank).local_rank, effect.identity.generation);
      const auto before = workers_.find(member.previous);
      if (member.newcomer && before != workers_.end()) {
        // The values of the rank that its forward had changed move on with the rank.
        for (size_t slot = 0; slot < 2; ++slot) {
          const worker::CapsuleSlot& from = before->second->page().capsule[slot];
          worker::CapsuleSlot& to = it->second->page().capsule[slot];
          const uint64_t bytes = std::min<uint64_t>(from.bytes.load(), worker::kCapsuleBytes);
          const size_t offset = worker::WorkerLayout::capsule(slot);
          std::memcpy(it->second->memory.data() + offset, before->second->memory.data() + offset, bytes);
          to.bytes = bytes;
          to.version_plus_1 = from.version_plus_1.load();
        }
        // So do the copies that the rank keeps of others.
        if (before->second->kept.valid() && !effect.resized) {
          it->second->kept = Fd(fcntl(before->second->kept.get(), F_DUPFD_CLOEXEC, 0));
          const int fd = before->second->kept.get();
          tell(*it->second, MessageType::kInherit, effect.identity, nlohmann::json::object(),
               std::span<const int>(&fd, 1));
        }
      }
    }
  }
  for (const Member& member : effect.members) {
    send_prepare(effect, member);
  }
}

// A store that a script opens itself at MASTER_PORT must not meet the sockets of the generation before. With several
// nodes all must come to the same port without asking: the node of rank 0 keeps some behind those of its ranks.
void Agent::choose_master(const brain::Prepare& effect) {
  master_addr_ = config_.spec.master_addr;
  master_port_ = config_.spec.master_port;
  if (config_.spec.several_nodes()) {
    const brain::RankTable::Entry& first = effect.table.entries().front();
    if (master_addr_.empty()) {
      master_addr_ = text_of(first.endpoint.address);
    }
    if (master_port_ == 0) {
      master_port_ = static_cast<uint16_t>(first.endpoint.port_base + config_.spec.nproc_per_node +
                                           effect.identity.generation % kMasterPorts);
    }
  } else if (master_port_ == 0) {
    master_port_ = free_port();
  }
}

RankAssignment Agent::assignment_of(const brain::Prepare& effect, brain::Rank rank) const {
  const brain::RankTable::Place place = effect.table.place(rank);
  RankAssignment assignment;
  assignment.rank = rank;
  assignment.local_rank = place.local_rank;
  const std::vector<brain::NodeId> nodes = nodes_of(effect.table);
  assignment.group_rank = static_cast<uint32_t>(std::ranges::find(nodes, place.node) - nodes.begin());
  assignment.world = effect.table.world_size();
  assignment.local_world = static_cast<uint32_t>(effect.members.size());
  assignment.groups = static_cast<uint32_t>(nodes.size());
  assignment.generation = effect.identity.generation;
  assignment.restarts = effect.restarts;
  assignment.master_addr = master_addr_;
  assignment.master_port = master_port_;
  return assignment;
}

void Agent::send_prepare(const brain::Prepare& effect, const Member& member) {
  const auto it = workers_.find(member.worker);
  if (it == workers_.end() || it->second->dead) {
    return;
  }
  std::vector<int> fds = {generation_->fd()};
  nlohmann::json ids = nlohmann::json::array();
  nlohmann::json ranks = nlohmann::json::array();
  for (const Member& each : effect.members) {
    const auto peer = workers_.find(each.worker);
    if (peer == workers_.end()) {
      return;  // a member died for good meanwhile; the coordinator is about to seal this generation
    }
    ids.push_back(each.worker);
    ranks.push_back(each.rank);
    fds.push_back(peer->second->memory.fd());
  }
  const RankAssignment assignment = assignment_of(effect, member.rank);
  const nlohmann::json rank_variables = json_of(rank_environment(config_.spec, assignment));
  if (config_.spec.no_python) {
    if (it->second->pid == 0) {
      nlohmann::json variables = job_variables();
      variables.update(rank_variables);
      starter_->spawn(it->second, variables);
    }
    if (!it->second->attached) {
      return;  // it gets this when it attaches, if it ever does
    }
  }
  const bool first = effect.identity.generation == 1 ||
                     (formed_ == Identity{} && member.previous == brain::kNoWorker && !effect.resized);
  const char* entry = first                                                   ? "start"
                      : !member.newcomer                                      ? (effect.resized ? "resize" : "recovery")
                      : effect.resized && member.previous == brain::kNoWorker ? "joined"
                                                                              : "replacement";
  nlohmann::json body = {{"rank", member.rank},
                         {"version", effect.version},
                         {"workers", ids},
                         {"newcomer", member.newcomer},
                         {"entry", entry},
                         {"because", effect.because},
                         {"resized", effect.resized},
                         {"sharding", effect.sharding.number},
                         {"from", {effect.from.number, effect.from.world}},
                         {"environment", rank_variables}};
  if (config_.spec.several_nodes()) {
    body["ranks"] = std::move(ranks);
    body["nodes"] = nlohmann::json::array();
    for (const brain::RankTable::Entry& each : effect.table.entries()) {
      body["nodes"].push_back(
          {each.node, text_of(each.endpoint.address), each.endpoint.port_base, each.ranks, each.first_local});
    }
    fds.push_back(config_.ports.listeners.at(assignment.local_rank).get());
    const Identity identity = effect.identity;
    const StatusOr<net::SharedKey> key =
        net::SharedKey::data_of(link_->data_secret(), identity.term, identity.generation);
    KEEPSTEP_CHECK(key.ok(), "the coordinator gave no secret for the connections between ranks");
    body["data_key"] = key->hex();
    body["data_plane"] = link_->plain_data() ? "plain" : "tls";
  }
  tell(*it->second, MessageType::kPrepare, effect.identity, std::move(body), fds);
  tell_notice(*it->second);
}

void Agent::activate(const brain::Activate& effect) {
  if (generation_ == nullptr || generation_->identity() != effect.identity || effect.identity <= sealed_) {
    return;
  }
  if (!active_) {
    // What was evaluated after that step may be evaluated again, and logged.
    metrics_.flush(effect.version == 0 ? 0 : effect.version - 1);
    store_.drop_before(effect.identity.generation);
    vaults_.drop_beyond(effect.version);
    vaults_.drop_before(generation_->prepare().from.number);
    active_ = true;
    note_ = effect.targets.empty() ? "" : "hydrating";
    let_leavers_out();
  }
  const brain::Prepare& prepared = generation_->prepare();
  nlohmann::json parity = nlohmann::json::array();
  for (const brain::ParityBlock& block : vaults_.parity_at(effect.version)) {
    parity.push_back({{"members", block.members}, {"row", block.row}});
  }
  for (const auto& process : living_members()) {
    tell(*process, MessageType::kActivate, effect.identity,
         {{"version", effect.version},
          {"sources", effect.sources},
          {"targets", effect.targets},
          {"compare", effect.compare},
          {"copies", vaults_.ranks_at(prepared.sharding.number, effect.version)},
          {"copies_from", vaults_.ranks_at(prepared.from.number, effect.version)},
          {"parity", parity}});
  }
}

void Agent::release(const brain::Release& effect) {
  for (const auto& process : living_members()) {
    tell(*process, MessageType::kRelease, effect.identity, nlohmann::json::object());
  }
  if (!effect.because.empty() && generation_ != nullptr && generation_->identity() == effect.identity) {
    generation_->drain();
  }
  end_on_notice();
}

void Agent::end_job(const brain::EndJob& effect) {
  end_ = JobEnd{effect.exit_code, effect.message, effect.traceback,
                effect.exit_code == kNoticeExitCode && (stopped_on_notice_ || !notice_.empty())};
  const Identity identity = generation_ == nullptr ? Identity{} : generation_->identity();
  if (generation_ != nullptr) {
    generation_->seal(holders());  // what is drained now must not be committed
    keep_losses();
    generation_->announce_end();
  }
  collect_all();
  metrics_.flush(metrics_.last_step());
  for (const auto& [id, process] : workers_) {
    if (config_.spec.no_python && process->pid == 0) {
      process->child_stdout.reset();  // a program that was held back: nobody else would end its output
      process->child_stderr.reset();
      continue;
    }
    if (!process->gone) {
      tell(*process, MessageType::kEnd, identity, {{"message", effect.message}});
      // A parked spare has nothing to clean up, unless it had a rank before the world shrank.
      if (!process->had_rank) {
        kill_process(*process);
      } else if (process->pid > 0 && effect.exit_code != 0 && !end_->on_notice) {
        kill(process->pid, SIGTERM);
      }
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

void Agent::finish_if_empty() {
  if (!end_.has_value()) {
    return;
  }
  for (const auto& [id, process] : workers_) {
    if (!process->gone && process->pid != 0) {
      return;
    }
  }
  loop_->stop();
}

void Agent::periodic() {
  collect_all();
  for (const auto& [id, process] : workers_) {
    process->outbox.flush(process->socket);
  }
  if (end_.has_value() && monotonic_ns() >= kill_at_ns_) {
    for (const auto& [id, process] : workers_) {
      kill_process(*process);
    }
  }
  for (const auto& [id, process] : workers_) {
    const double leaving_s = static_cast<double>(monotonic_ns() - process->interrupted_at_ns) * 1e-9;
    if (process->interrupted_at_ns != 0 && process->timeout_s > 0 && leaving_s > process->timeout_s && !process->dead) {
      process->interrupted_at_ns = 0;
      journal_.write("kill", sealed_, absl::StrFormat("it did not leave its step within %g s", process->timeout_s),
                     {{"worker", int64_t{id}}, {"pid", int64_t{process->pid}}});
      kill_process(*process);
    }
  }
  // Children that a dead worker left behind are ours to reap, as its subreaper.
  std::erase_if(groups_, [](pid_t group) {
    siginfo_t info{};
    do {
      info.si_pid = 0;
    } while (waitid(P_PGID, static_cast<id_t>(group), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0);
    return kill(-group, 0) != 0;
  });
  for (const auto& process : Workers(workers_)) {
    if (process.second->pidfd.valid() && !process.second->gone) {
      on_exit(process.second);
    }
  }
  introduce();
  apply_log_rules();
  apply_health();
  await_nodes();
  watch_for_hangs();
  watch_pace();
  watch_clock();
  leave_in_time();
  watch_memory_questions();
  keep_door_open();
  finish_if_empty();
  update_status();
  status_.refresh();
}

}  // namespace keepstep::agent
