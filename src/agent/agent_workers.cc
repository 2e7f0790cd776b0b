// The agent's other half: messages of workers, and how their deaths are noticed.

#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/agent.h"
#include "agent/publications/publication_service.h"
#include "base/log.h"
#include "base/overloaded.h"
#include "messages/envelope.h"

namespace keepstep::agent {

using brain::WorkerId;

namespace {

constexpr double kMaxSeconds = 1e9;  // for a limit; more is as good as no limit

}  // namespace

void Agent::on_started(WorkerId id, pid_t pid, Fd pidfd, const std::string& how) {
  const auto it = core_.workers.find(id);
  if (it == core_.workers.end()) {  // it was dropped while it started
    kill(pid, SIGKILL);
    core_.groups.insert(pid);
    return;
  }
  const std::shared_ptr<WorkerProcess> process = it->second;
  process->pid = pid;
  process->pidfd = std::move(pidfd);
  // Now only the worker holds its ends, so the end of its streams means that it ended.
  process->child_socket = PacketSocket();
  process->child_stdout.reset();
  process->child_stderr.reset();
  core_.journal.write("spawned", {}, "", {{"worker", int64_t{id}}, {"pid", int64_t{pid}}, {"how", how}});
  (void)core_.loop->watch(process->socket.fd(), [this, process] { on_packet(process); });
  (void)core_.loop->watch(process->pidfd.get(), [this, process] { on_exit(process); });
  if (core_.end.has_value() || core_.is_dead(*process)) {
    kill_process(*process);
  }
}

void Agent::on_packet(const std::shared_ptr<WorkerProcess>& process) {
  StatusOr<Packet> packet = process->socket.receive();
  if (!packet.ok()) {
    if (absl::IsUnavailable(packet.status())) {
      core_.loop->unwatch(process->socket.fd());  // the pidfd reports the rest
    } else {
      core_.refuse(*process, std::string(packet.status().message()));
    }
    return;
  }
  const StatusOr<messages::Envelope> envelope = messages::decode(*packet);
  const StatusOr<messages::FromRank> message =
      envelope.ok() ? messages::read<messages::FromRank>(envelope->text) : envelope.status();
  if (!message.ok()) {
    core_.refuse(*process, std::string(message.status().message()));
    return;
  }
  commits_.collect(*process);  // what it did before this message
  on_message(process, envelope->identity, *message, std::move(packet->fds));
}

void Agent::on_message(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                       const messages::FromRank& message, std::vector<Fd> fds) {
  const WorkerId id = process->id;
  std::visit(Overloaded{
                 [&](const messages::Attach& attach) { on_attach(process, attach); },
                 [&](const messages::Parked& parked) { on_parked(*process, parked); },
                 [&](const messages::Recoverable& entered) {
                   process->recoverable = true;
                   const std::chrono::duration<double> limit(std::min(entered.timeout_s, kMaxSeconds));
                   step(brain::LeaveLimit{id, std::chrono::duration_cast<brain::Time>(limit)});
                   core_.link->send(brain::WorkerRecoverable{id});
                 },
                 [&](const messages::Preload& preload) {
                   if (!std::exchange(preload_sent_, true)) {
                     starter_->preload(preload.modules, preload.path, variables_.of_job());
                   }
                 },
                 [&](const messages::Ready& ready) {
                   step(brain::MemberReady{identity, {id, {ready.state, ready.version}, ready.sharded}});
                 },
                 [&](const messages::Hydrated& hydrated) { on_hydrated(*process, identity, hydrated); },
                 [&](const messages::Formed&) { step(brain::Formed{identity}); },
                 [](const messages::Collect&) {},  // done above
                 [&](const messages::Faulted& fault) {
                   core_.link->send(brain::WorkerFaulted{id, identity, fault.step, fault.what, fault.traceback,
                                                         fault.fatal, fault.link, fault.digests, fault.after_commit});
                 },
                 [&](const messages::Paused&) { core_.link->send(brain::WorkerPaused{id, identity}); },
                 [&](const messages::Useful& useful) {
                   if (core_.config.spec.elastic) {
                     core_.link->send(brain::UsefulWorlds{useful.ranks, useful.sizes});
                   }
                 },
                 [&](const messages::Finished& finished) { on_finished(*process, identity, finished); },
                 [&](const messages::Crashed& crashed) { process->traceback = crashed.traceback; },
                 [&](const messages::Unfit& unfit) { health_.on_unfit(process, unfit); },
                 [&](const messages::Saved& saved) { saves_.on_saved(identity, saved); },
                 [&](const messages::Settled& settled) { step(brain::Settled{settled.sharding}); },
                 [&](const messages::StoreQuestion& question) { store_.ask(*process, question, std::move(fds)); },
                 [&](const messages::VaultQuestion& question) { vaults_.answer(process, identity, question); },
                 [&](const messages::Kept&) {
                   if (fds.size() != 1) {
                     core_.refuse(*process, absl::StrCat("capsules that it keeps: ", Packet::kFdsLost));
                   } else if (!core_.brain.outdated(identity)) {
                     process->kept = std::move(fds.front());
                   }
                 },
                 [&](const messages::Publish& publication) {
                   const Status published =
                       fds.size() != 1 ? absl::InvalidArgumentError(Packet::kFdsLost)
                       : publications_ == nullptr
                           ? absl::UnavailableError("this agent takes no publications; its log says why")
                           : publications_->publish(publication, std::move(fds.front()));
                   if (!published.ok()) {
                     core_.refuse(*process, absl::StrCat("a publication: ", published.message()));
                     spdlog::warn("a publication was refused: {}", std::string(published.message()));
                   }
                 },
                 [&](const messages::Note& note) {
                   if (!saves_.on_note(*process, identity, note)) {
                     core_.refuse(*process, absl::StrFormat("a note with the unknown event '%s'", note.event));
                   }
                 },
                 [&](const messages::Injected& injected) {
                   if (!faults_.on_injected(process, injected)) {
                     core_.refuse(*process, "it carries out a fault that nobody asked for: " + injected.key);
                   }
                 },
             },
             message);
}

void Agent::on_parked(WorkerProcess& process, const messages::Parked& parked) {
  process.parked = true;
  health_.passed();
  if (parked.rehearsed.has_value()) {
    core_.journal.write(parked.rehearsed->done ? "rehearsed" : "not_rehearsed", {}, parked.rehearsed->because,
                        {{"worker", int64_t{process.id}}, {"seconds", parked.rehearsed->seconds}});
  }
  core_.link->send(brain::WorkerParked{process.id, process.pid, parked.functions});
}

void Agent::on_finished(const WorkerProcess& process, brain::Identity identity, const messages::Finished& finished) {
  if (core_.log_watch != nullptr) {
    core_.log_watch->ended(process.id);
  }
  notice_.ranks_stopped(finished.notice);
  core_.link->send(brain::WorkerFinished{process.id, identity});
}

void Agent::on_hydrated(const WorkerProcess& process, brain::Identity identity, const messages::Hydrated& hydrated) {
  core_.journal.write("hydrated", identity, "",
                      {{"rank", int64_t{core_.rank_of(process).value_or(0)}},
                       {"worker", int64_t{process.id}},
                       {"bytes", hydrated.bytes},
                       {"skipped", hydrated.skipped},
                       {"repeated", hydrated.repeated},
                       {"seconds", hydrated.seconds},
                       {"sources", hydrated.sources},
                       {"bytes_from", hydrated.bytes_from}});
}

void Agent::on_attach(const std::shared_ptr<WorkerProcess>& process, const messages::Attach& attach) {
  if (process->attached) {  // two processes share a socket: no message to either is reliable
    core_.stop_job(1, absl::StrFormat("two programs of worker %d (pid %d) attached; does a script start several?",
                                      process->id, process->pid));
    return;
  }
  watch_life(process,
             [this, process, loop = core_.loop] { loop->post([this, process] { on_death_notice(process); }); });
  const messages::Texts& fingerprint = attach.fingerprint;
  if (fingerprint_.empty()) {
    fingerprint_ = fingerprint;
    if (core_.config.node == 0) {
      joining_.on_fingerprint(0, fingerprint);
    } else {
      core_.route(0, messages::Fingerprint{fingerprint});
    }
  } else if (fingerprint_ != fingerprint) {
    core_.stop_job(
        1, absl::StrFormat("worker %d (pid %d) would not compute the same bits as the others: it has %s, they have %s. "
                           "Does the script, or an import, change the number of threads or determinism flags only "
                           "sometimes?",
                           process->id, process->pid, nlohmann::json(fingerprint).dump(),
                           nlohmann::json(fingerprint_).dump()));
    return;
  }
  messages::Welcome welcome{.spare = process->spare,
                            .functions = process->functions,
                            .seed = core_.config.spec.seed,
                            .check_all = core_.config.spec.check_all_steps,
                            .digests = core_.config.spec.digests,
                            .digest_every = core_.config.spec.digest_every,
                            .world = core_.world(),
                            .several_nodes = core_.config.spec.several_nodes(),
                            .elastic = core_.config.spec.elastic.has_value(),
                            .health_check = core_.config.spec.health_check,
                            .learn = core_.config.spec.preload && !preload_sent_,
                            .term_is_notice = is_notice(core_.config.spec, SIGTERM),
                            .rings = rings_socket_,
                            .background_writer = writer_socket_,
                            .rank_variables = variables_.names_of_rank(),
                            .inject = faults_.waiting(),
                            .comm = comm_config_};
  core_.tell(*process, {}, welcome);
  process->attached = true;
  if (core_.config.spec.no_python) {
    programs_.on_attached(*process);
  }
}

// A traceback, an injected fault, or what made the worker unfit: these messages may still be in a dead worker's socket.
void Agent::read_last_words(const std::shared_ptr<WorkerProcess>& process) {
  while (process->socket.valid()) {
    char probe;
    if (recv(process->socket.fd(), &probe, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
      break;
    }
    on_packet(process);
  }
}

void Agent::on_death_notice(const std::shared_ptr<WorkerProcess>& process) {
  if (!core_.is_dead(*process)) {
    read_last_words(process);
    step(brain::WorkerDied{process->id, process->pid, -1, 0, "robust mutex", process->traceback, process->unfit,
                           process->committed(core_.brain.identity())});
  }
}

// By value: it may be the last owner.  NOLINTNEXTLINE(performance-unnecessary-value-param)
void Agent::on_exit(std::shared_ptr<WorkerProcess> process) {
  const std::optional<ExitStatus> status = process->pidfd.valid() ? try_reap(*process) : std::nullopt;
  if (!status.has_value()) {
    return;
  }
  read_last_words(process);
  commits_.collect(*process);
  core_.loop->unwatch(process->pidfd.get());
  process->pidfd.reset();
  core_.loop->unwatch(process->socket.fd());
  store_.forget(process->id);
  // Processes that the worker started (loaders, subprocesses) are in its process group, and end with it.
  if (kill(-process->pid, SIGKILL) == 0) {
    core_.groups.insert(process->pid);
  }
  temp_.remove(process->id);
  core_.pump.flush(process->id, 20);
  if (core_.log_watch != nullptr) {
    core_.log_watch->ended(process->id);
  }
  core_.journal.write("exit_confirmed", {}, "",
                      {{"worker", int64_t{process->id}},
                       {"pid", int64_t{process->pid}},
                       {"signal", int64_t{status->signal}},
                       {"exit_code", int64_t{status->exit_code}}});
  if (status->signal == 0 && status->exit_code == 0) {
    step(brain::WorkerExited{process->id});
  } else {
    step(brain::WorkerDied{process->id, process->pid, status->signal, status->exit_code, "pidfd", process->traceback,
                           process->unfit, process->committed(core_.brain.identity())});
  }
  finish_if_empty();
}

}  // namespace keepstep::agent
