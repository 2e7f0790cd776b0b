#include "agent/agent.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "agent/rings/ring_service.h"
#include "agent/workers/drain_process.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/terminal_text.h"
#include "comm/tcp/tcp_transport.h"
#include "rank/link/ring_link.h"

namespace keepstep::agent {

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
  return rank::WorkerLayout(config).bytes * (spec.nproc_per_node + spec.spares) +
         2 * rank::generation_page_bytes(config);
}

Agent::Agent(AgentConfig config, observe::Journal& journal, OutputPump& pump, observe::StatusLine& status)
    : core_(std::move(config), journal, pump),
      status_(status),
      comm_config_(comm_config(core_.config.spec)),
      layout_(comm_config_),
      store_(core_.config.node) {
  core_.end_job = [this](const brain::EndJob& end) { carry_out(end); };
}

Agent::~Agent() = default;

StatusOr<JobEnd> Agent::run(const sigset_t& signals) {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return errno_status("become the subreaper of the workers");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(core_.loop, EventLoop::create());
  memory_questions_ = std::make_unique<MemoryQuestions>(core_, vaults_, saves_);
  vault_maker_ = std::make_unique<VaultMaker>(core_.loop, vaults_);
  signal_fd_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  KEEPSTEP_RETURN_IF_ERROR(core_.loop->watch(signal_fd_.get(), [this] { on_signal(); }));
  open_door();
  open_endpoint();
  open_temp();
  open_rings();
  open_drain();
  starter_ = std::make_unique<Starter>(
      *core_.loop, core_.config.spec,
      Starter::Callbacks{
          [this](WorkerId worker, pid_t pid, Fd pidfd, const std::string& how) {
            on_started(worker, pid, std::move(pidfd), how);
          },
          [this](WorkerId worker, const std::string& why) { step(brain::WorkerDied{worker, 0, 0, 1, "start", why}); },
          [this](const std::string& event, const std::string& why) { core_.journal.write(event, {}, why); }});
  KEEPSTEP_RETURN_IF_ERROR(starter_->start());
  if (!core_.config.spec.log_rules.empty()) {
    core_.log_watch = std::make_shared<LogWatch>(core_.config.spec.log_rules);
    core_.pump.watch([watch = core_.log_watch](WorkerId worker, std::string_view lines) {
      watch->lines(worker, lines, monotonic_ns());
    });
  }
  write_memory();
  StatusOr<std::unique_ptr<CoordinatorLink>> link = attend();
  if (!link.ok()) {
    starter_->stop();
    if (signals_ > 0) {
      return *core_.end;
    }
    return link.status();
  }
  core_.link = *std::move(link);
  core_.config.seat.reset();
  joining_.introduce();
  health_.start();
  core_.loop->every(std::chrono::milliseconds(100), [this] { periodic(); });
  core_.loop->run();
  core_.pump.finish();
  health_.apply_log_rules();  // to what the ranks said last
  door_.reset();
  if (core_.config.take_commands) {
    core_.config.take_commands(nullptr);
  }
  rings_.reset();
  memory_questions_.reset();
  health_.stop();
  if (drain_ != nullptr && !core_.gives_up) {
    drain_->end(kDrainGrace, signal_fd_.get());
  }
  drain_.reset();
  if (core_.gives_up) {
    // Without a goodbye: to the coordinator a node that says one has done its part, and this one is lost.
    starter_->stop();
    temp_.remove_all();
    std::fprintf(stderr, "keepstep: %s\n", terminal_text(core_.end->message).c_str());
    core_.journal.flush(observe::Journal::kGoodbye);
    _exit(core_.end->exit_code);
  }
  joining_.refused() ? core_.link->abandon() : core_.link->close();
  starter_->stop();
  return *core_.end;
}

void Agent::open_rings() {
  rings_socket_ = std::filesystem::absolute(temp_.path() / "rings");
  auto rings = RingService::open(*core_.loop, rings_socket_, [this](const RingService::News& news) {
    core_.journal.write(news.event, {}, news.because,
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
      *core_.loop, drain_socket_, core_.config.spec.python, core_.config.node,
      {[this](const std::string& event, const std::string& because) { core_.journal.write(event, {}, because); },
       [this](brain::Version version, uint32_t generation) { core_.link->send(brain::Saved{version, generation}); },
       [this](brain::NodeId to, const std::string& message) { core_.route(to, messages::DrainNews{message}); }});
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
  const uint64_t elsewhere = core_.config.spec.most_ranks() - core_.config.spec.nproc_per_node;
  const comm::MostSockets sockets = comm::most_sockets(elsewhere);
  core_.journal.write(
      "memory", {}, "shared memory of this node, the same for the job's whole life",
      {{"connections_per_rank", bytes(sockets.connections)},
       {"bytes_per_connection", bytes(sockets.bytes_per_connection)},
       {"sockets", bytes(core_.config.spec.nproc_per_node * sockets.connections * sockets.bytes_per_connection)},
       {"workers", int64_t{core_.config.spec.nproc_per_node + core_.config.spec.spares}},
       {"bytes_per_worker", bytes(layout_.bytes)},
       {"arena", bytes(comm::arena_bytes(comm_config_))},
       {"capsules", bytes(2 * rank::kCapsuleBytes)},
       {"logs", bytes(rank::kLogRingBytes)},
       {"hydration", bytes(state::region_bytes())},
       {"generation_page", bytes(rank::generation_page_bytes(comm_config_))},
       {"total", bytes(shared_memory_bytes(core_.config.spec))}});
}

void Agent::on_signal() {
  signalfd_siginfo info{};
  if (read(signal_fd_.get(), &info, sizeof info) != sizeof info) {
    return;
  }
  const int number = static_cast<int>(info.ssi_signo);
  if (elastic_.leave_on(number) || (is_notice(core_.config.spec, number) && notice_.on_signal(number))) {
    return;
  }
  const char* name = strsignal(static_cast<int>(info.ssi_signo));
  if (++signals_ == 1) {
    core_.stop_job(128 + static_cast<int>(info.ssi_signo), absl::StrFormat("stopped by %s", name));
  }
  if (signals_ > 1 || core_.end.has_value()) {
    core_.kill_at_ns = monotonic_ns();
    if (!core_.end.has_value()) {
      carry_out(brain::EndJob{128 + static_cast<int>(info.ssi_signo), "stopped at once by a second signal", ""});
    }
    periodic();
  }
}

void Agent::finish_if_empty() {
  if (!core_.end.has_value()) {
    return;
  }
  for (const auto& [id, process] : core_.workers) {
    if (process->pidfd.valid()) {
      return;
    }
  }
  core_.loop->stop();
}

void Agent::periodic() {
  collect_all();
  for (const auto& [id, process] : core_.workers) {
    process->outbox.flush(process->socket);
  }
  if (core_.end.has_value() && monotonic_ns() >= core_.kill_at_ns) {
    for (const auto& [id, process] : core_.workers) {
      kill_process(*process);
    }
  }
  step(brain::Tick{});
  // Children that a dead worker left behind are ours to reap, as its subreaper.
  std::erase_if(core_.groups, [](pid_t group) {
    siginfo_t info{};
    do {
      info.si_pid = 0;
    } while (waitid(P_PGID, static_cast<id_t>(group), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0);
    return kill(-group, 0) != 0;
  });
  for (const auto& process : Workers(core_.workers)) {
    if (process.second->pidfd.valid()) {
      on_exit(process.second);
    }
  }
  joining_.introduce();
  health_.apply_log_rules();
  health_.look();
  if (const std::optional<std::string> waits = joining_.await_nodes()) {
    note_ = *waits;
  }
  hangs_.watch();
  pace_.watch();
  clocks_.watch();
  elastic_.leave_in_time();
  memory_questions_->give_up_the_silent();
  keep_door_open();
  finish_if_empty();
  update_status();
  status_.refresh();
}

}  // namespace keepstep::agent
