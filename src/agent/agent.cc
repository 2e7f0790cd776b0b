#include "agent/agent.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "agent/control/seat.h"
#include "agent/publications/publication_service.h"
#include "agent/rings/ring_service.h"
#include "agent/workers/background_writer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/terminal_text.h"
#include "comm/tcp/tcp_transport.h"
#include "rank/link/ring_link.h"

namespace keepstep::agent {

using brain::WorkerId;

namespace {

constexpr int kTryAgainMs = 1000;                 // if the place is taken, or nobody answered
constexpr std::chrono::seconds kWriterGrace{12};  // to release its destinations; an unreachable one takes 10 s

// Journals what the ranks' shared memory is for. It is allocated when a worker starts and does not grow.
void write_memory(const AgentCore& core, const rank::WorkerLayout& layout, const comm::CommConfig& config) {
  const auto bytes = [](size_t value) { return static_cast<int64_t>(value); };
  const uint64_t elsewhere = core.config.spec.rank_limit() - core.config.spec.nproc_per_node;
  const comm::MaxSockets sockets = comm::max_sockets(elsewhere);
  core.journal.write(
      "memory", {}, "shared memory of this node, the same for the job's whole life",
      {{"connections_per_rank", bytes(sockets.connections)},
       {"bytes_per_connection", bytes(sockets.bytes_per_connection)},
       {"sockets", bytes(core.config.spec.nproc_per_node * sockets.connections * sockets.bytes_per_connection)},
       {"workers", int64_t{core.config.spec.nproc_per_node + core.config.spec.spares}},
       {"bytes_per_worker", bytes(layout.bytes)},
       {"arena", bytes(comm::arena_bytes(config))},
       {"capsules", bytes(2 * rank::kCapsuleBytes)},
       {"logs", bytes(rank::kLogRingBytes)},
       {"hydration", bytes(state::region_bytes())},
       {"generation_page", bytes(rank::generation_page_bytes(config))},
       {"total", bytes(shared_memory_bytes(core.config.spec))}});
}

}  // namespace

comm::CommConfig comm_config(const JobSpec& spec) {
  comm::CommConfig config;
  config.max_world = spec.rank_limit();
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
      comm_config_(comm_config(core_.config.spec)),
      layout_(comm_config_),
      programs_(
          core_,
          [this](const std::shared_ptr<WorkerProcess>& process) { starter_->spawn(process, variables_.of_job()); }),
      moment_(core_, saves_, pace_, status) {
  core_.step = [this](const brain::NodeEvent& event) { step(event); };
  core_.end_job = [this](const brain::EndJob& end) { carry_out(end); };
}

Agent::~Agent() = default;

StatusOr<JobEnd> Agent::run(const sigset_t& signals) {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return errno_status("become the subreaper of the workers");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(core_.loop, EventLoop::create());
  vaults_.open();
  memory_questions_ = std::make_unique<MemoryQuestions>(core_, vaults_.all(), saves_);
  open_services();
  commands_ = std::make_unique<Commands>(
      core_, Commands::Parts{faults_, *memory_questions_, elastic_, pace_, moment_, publications_.get()});
  signal_fd_ = Fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  KEEPSTEP_RETURN_IF_ERROR(core_.loop->watch(signal_fd_.get(), [this] { on_signal(); }));
  commands_->open();
  others_ = std::make_unique<OtherNodes>(
      core_, OtherNodes::Parts{store_, joining_, programs_, clocks_, notice_, elastic_, hangs_, pace_,
                               *memory_questions_, background_writer_.get()});
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
  write_memory(core_, layout_, comm_config_);
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
  health_.apply_log_rules();  // to the ranks' last lines
  commands_->close();
  rings_.reset();
  others_.reset();
  commands_.reset();
  publications_.reset();
  memory_questions_.reset();
  health_.stop();
  if (background_writer_ != nullptr && !core_.gives_up) {
    background_writer_->end(kWriterGrace, signal_fd_.get());
  }
  background_writer_.reset();
  if (core_.gives_up) {
    // No goodbye: the coordinator takes a node that says goodbye for finished, and this one is lost.
    starter_->stop();
    temp_.remove_all();
    std::fprintf(stderr, "keepstep: %s\n", terminal_text(core_.end->message).c_str());
    core_.journal.flush(observe::Journal::kGoodbye);
    _exit(core_.end->exit_code);
  }
  joining_.refused() ? core_.link->abandon() : core_.link->close();
  starter_->stop();
  temp_.remove_all();  // before the vaults' memory is freed, which may take seconds
  return *core_.end;
}

StatusOr<std::unique_ptr<CoordinatorLink>> Agent::attend() {
  const AgentConfig& config = core_.config;
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls,
                            net::TlsContext::create(net::SharedKey::control(config.token, config.spec.run_id)));
  const auto pause = [this] {
    pollfd stop{signal_fd_.get(), POLLIN, 0};
    if (poll(&stop, 1, kTryAgainMs) <= 0) {
      return false;
    }
    signalfd_siginfo info{};
    (void)!read(signal_fd_.get(), &info, sizeof info);
    signals_ = 1;
    const int number = static_cast<int>(info.ssi_signo);
    const bool notice = is_notice(core_.config.spec, number);
    core_.end = JobEnd{notice ? kNoticeExitCode : 128 + number, absl::StrFormat("stopped by %s", strsignal(number)), "",
                       notice};
    return true;
  };
  const auto connect = [&] {
    return CoordinatorLink::connect(
        config.coordinator, config.node, config.node_name, tls,
        [this](brain::Effect effect) { core_.loop->post([this, effect = std::move(effect)] { carry_out(effect); }); },
        [this](std::string why) {
          core_.loop->post([this, why = std::move(why)] {
            core_.end_job({1,
                           absl::StrFormat("the coordinator%s is gone, and in this version the job ends with it: %s",
                                           core_.config.node == 0 ? "" : " (node 0)", why),
                           ""});
          });
        },
        kOneTry,
        [this](brain::NodeId from, std::string message) {
          core_.loop->post([this, from, message = std::move(message)] { others_->on_routed(from, message); });
        });
  };
  return ask_for_place(false, config.spec.join_timeout_s, connect, pause,
                       [this](const std::string& what) { core_.pump.say("keepstep: " + what); });
}

void Agent::open_services() {
  if (StatusOr<TempFolder> folder = TempFolder::create(); folder.ok()) {
    temp_ = *std::move(folder);
  } else {
    spdlog::warn("killed workers may leave temporary files: {}", std::string(folder.status().message()));
  }
  rings_socket_ = std::filesystem::absolute(temp_.path() / "rings");
  auto rings = RingService::open(*core_.loop, rings_socket_, [this](const RingService::News& news) {
    core_.journal.write(news.event, {}, news.because,
                        {{"ring", news.ring}, {"batch", static_cast<int64_t>(news.batch)}, {"pid", int64_t{news.pid}}});
  });
  if (rings.ok()) {
    rings_ = *std::move(rings);
  } else {
    rings_socket_.clear();
    spdlog::warn("keepstep.data.cached will not work in this job: {}", std::string(rings.status().message()));
  }
  auto publications = PublicationService::open(*core_.loop, std::filesystem::absolute(temp_.path() / "publications"));
  if (publications.ok()) {
    publications_ = *std::move(publications);
  } else {
    spdlog::warn("run.publish will not work in this job: {}", std::string(publications.status().message()));
  }
  writer_socket_ = std::filesystem::absolute(temp_.path() / "writer");
  auto writer = BackgroundWriter::open(
      *core_.loop, writer_socket_, core_.config.spec.python, core_.config.node,
      {[this](const std::string& event, const std::string& because) { core_.journal.write(event, {}, because); },
       [this](brain::Version version, uint32_t generation) { core_.link->send(brain::Saved{version, generation}); },
       [this](brain::NodeId to, const std::string& message) { core_.route(to, messages::WriterNews{message}); }});
  if (writer.ok()) {
    background_writer_ = *std::move(writer);
  } else {
    writer_socket_.clear();
    spdlog::warn("run.checkpoint will not work in this job: {}", std::string(writer.status().message()));
  }
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
  commits_.collect_all();
  for (const auto& [id, process] : core_.workers) {
    process->outbox.flush(process->socket);
  }
  if (core_.end.has_value() && monotonic_ns() >= core_.kill_at_ns) {
    for (const auto& [id, process] : core_.workers) {
      kill_process(*process);
    }
  }
  step(brain::Tick{});
  // As subreaper we reap the children that a dead worker left behind.
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
    moment_.is(*waits);
  }
  hangs_.watch();
  pace_.watch();
  clocks_.watch();
  elastic_.leave_in_time();
  memory_questions_->give_up_the_silent();
  commands_->keep_open();
  if (publications_ != nullptr) {
    publications_->forget_unread();
  }
  finish_if_empty();
  moment_.show();
}

}  // namespace keepstep::agent
