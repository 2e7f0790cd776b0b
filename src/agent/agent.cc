#include "agent/agent.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "agent/rings/ring_service.h"
#include "agent/workers/drain_process.h"
#include "agent/workers/ports.h"
#include "agent/workers/torchrun_env.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/terminal_text.h"
#include "comm/tcp/tcp_transport.h"
#include "rank/link/ring_link.h"

namespace keepstep::agent {

using brain::Identity;
using brain::WorkerId;

namespace {

constexpr std::chrono::seconds kDrainGrace{12};  // it lets go of its places: one that is not reached takes 10 s

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
      hang_watch_(config_.spec.hang),
      brain_(config_.node) {
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
      Starter::Callbacks{
          [this](WorkerId worker, pid_t pid, Fd pidfd, const std::string& how) {
            on_started(worker, pid, std::move(pidfd), how);
          },
          [this](WorkerId worker, const std::string& why) { step(brain::WorkerDied{worker, 0, 0, 1, "start", why}); },
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

void Agent::finish_if_empty() {
  if (!end_.has_value()) {
    return;
  }
  for (const auto& [id, process] : workers_) {
    if (process->pidfd.valid()) {
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
  step(brain::Tick{});
  // Children that a dead worker left behind are ours to reap, as its subreaper.
  std::erase_if(groups_, [](pid_t group) {
    siginfo_t info{};
    do {
      info.si_pid = 0;
    } while (waitid(P_PGID, static_cast<id_t>(group), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0);
    return kill(-group, 0) != 0;
  });
  for (const auto& process : Workers(workers_)) {
    if (process.second->pidfd.valid()) {
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
