// The agent's other half: what workers say, and how their deaths are noticed.

#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/agent.h"
#include "agent/workers/torchrun_env.h"
#include "messages/envelope.h"
#include "messages/store_value.h"

namespace keepstep::agent {

using brain::WorkerId;

namespace {

constexpr double kMostSeconds = 1e9;  // of a limit: more is as good as none

}  // namespace

void Agent::on_started(WorkerId id, pid_t pid, Fd pidfd, const std::string& how) {
  const auto it = core_.workers.find(id);
  if (it == core_.workers.end()) {  // it was given up while it started
    kill(pid, SIGKILL);
    core_.groups.insert(pid);
    return;
  }
  const std::shared_ptr<WorkerProcess> process = it->second;
  process->pid = pid;
  process->pidfd = std::move(pidfd);
  // From here on only the worker holds its ends: the end of its streams means its end.
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
      core_.loop->unwatch(process->socket.fd());  // the pidfd tells the rest
    } else {
      refuse(*process, std::string(packet.status().message()));
    }
    return;
  }
  const StatusOr<messages::Envelope> envelope = messages::decode(*packet);
  const StatusOr<messages::FromRank> message =
      envelope.ok() ? messages::read<messages::FromRank>(envelope->text) : envelope.status();
  if (!message.ok()) {
    refuse(*process, std::string(message.status().message()));
    return;
  }
  collect(*process);  // what it did before it said so
  on_message(process, envelope->identity, *message, std::move(packet->fds));
}

void Agent::refuse(const WorkerProcess& process, const std::string& because) {
  core_.journal.write("refused", {}, because, {{"worker", int64_t{process.id}}, {"count", ++refused_}});
}

void Agent::on_message(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                       const messages::FromRank& message, std::vector<Fd> fds) {
  const WorkerId id = process->id;
  std::visit(messages::Overloaded{
                 [&](const messages::Attach& attach) { on_attach(process, attach); },
                 [&](const messages::Parked& parked) { on_parked(*process, parked); },
                 [&](const messages::Recoverable& entered) {
                   process->recoverable = true;
                   const std::chrono::duration<double> limit(std::min(entered.timeout_s, kMostSeconds));
                   step(brain::LeaveLimit{id, std::chrono::duration_cast<brain::Time>(limit)});
                   core_.link->send(brain::WorkerRecoverable{id});
                 },
                 [&](const messages::Preload& preload) {
                   if (!std::exchange(preload_sent_, true)) {
                     starter_->preload(preload.modules, preload.path, job_variables());
                   }
                 },
                 [&](const messages::Ready& ready) {
                   step(brain::Ready{id, identity, {ready.state, ready.version}, ready.sharded});
                 },
                 [&](const messages::Hydrated& hydrated) { on_hydrated(*process, identity, hydrated); },
                 [&](const messages::Formed&) { step(brain::Formed{identity}); },
                 [](const messages::Collect&) {},  // that is done
                 [&](const messages::Faulted& fault) {
                   core_.link->send(brain::WorkerFaulted{id, identity, fault.step, fault.what, fault.traceback,
                                                         fault.fatal, fault.link, fault.digests, fault.after_commit});
                 },
                 [&](const messages::Paused&) { core_.link->send(brain::WorkerPaused{id, identity}); },
                 [&](const messages::Useful& useful) {
                   if (core_.config.spec.elastic) {
                     core_.link->send(brain::MostUseful{useful.ranks, useful.sizes});
                   }
                 },
                 [&](const messages::Finished& finished) { on_finished(*process, identity, finished); },
                 [&](const messages::Crashed& crashed) { process->traceback = crashed.traceback; },
                 [&](const messages::Unfit& unfit) { health_.on_unfit(process, unfit); },
                 [&](const messages::Saved& saved) { on_saved(identity, saved); },
                 [&](const messages::Settled& settled) { step(brain::Settled{settled.sharding}); },
                 [&](const messages::StoreQuestion& question) { on_store(*process, question, std::move(fds)); },
                 [&](const messages::VaultQuestion& question) { on_vault(process, identity, question); },
                 [&](const messages::Kept&) {
                   if (fds.size() != 1) {
                     refuse(*process, absl::StrCat("capsules that it keeps: ", Packet::kFdsLost));
                   } else if (!core_.brain.outdated(identity)) {
                     process->kept = std::move(fds.front());
                   }
                 },
                 [&](const messages::Note& note) { on_note(*process, identity, note); },
                 [&](const messages::Injected& injected) {
                   if (!faults_.on_injected(process, injected)) {
                     refuse(*process, "it carries out a fault that nobody asked for: " + injected.key);
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
  core_.link->send(brain::WorkerParked{process.id, process.pid});
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

void Agent::on_vault(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                     const messages::VaultQuestion& question) {
  const auto answer = [this, process, identity, id = question.id](const StatusOr<int>& memory) {
    const std::vector<int> fds = memory.ok() ? std::vector<int>{*memory} : std::vector<int>{};
    core_.tell(*process, identity, messages::VaultAnswer{id, std::string(memory.status().message())}, fds);
  };
  ShardVaults::Of of{question.sharding, {}};
  if (question.block.has_value()) {
    if (!brain::is_possible(*question.block)) {
      answer(absl::InvalidArgumentError("no code has such a block of parity"));
      return;
    }
    of.what = *question.block;
  } else {
    of.what = question.rank;
  }
  if (question.version.has_value()) {
    answer(vaults_.holding(of, *question.version));
  } else {
    vault_maker_->ask({std::move(of), question.data_bytes, question.text_room}, answer);
  }
}

void Agent::on_saved(brain::Identity identity, const messages::Saved& saved) {
  core_.link->send(brain::Saved{saved.version, saved.generation});
  core_.journal.write("saved", identity, saved.where,
                      {{"version", static_cast<int64_t>(saved.version)},
                       {"seconds", saved.seconds},
                       {"left_out", saved.left_out},
                       {"left_out_steps", saved.left_out_steps}});
  saves_.spoke_of(saved.where);
  if (saves_.in_time(saved.where)) {
    update_status();
  }
}

void Agent::on_note(const WorkerProcess& process, brain::Identity identity, const messages::Note& note) {
  const bool of_a_save = note.event == "not_saved" || note.event == "save_late";
  const bool of_a_shard = note.event == "shard_rebuilt" || note.event == "corrupt_copy";
  if (!of_a_save && !of_a_shard && note.event != "veto" && note.event != "not_compared") {
    refuse(process, absl::StrFormat("a note of '%s', which is none", note.event));
    return;
  }
  const auto step = static_cast<int64_t>(note.step);
  if (of_a_save) {
    saves_.spoke_of(note.where);
    saves_.late(note.where, step);
    update_status();
  }
  core_.journal.write(
      note.event, identity, note.because,
      {{"worker", int64_t{process.id}}, {"rank", int64_t{core_.rank_of(process).value_or(0)}}, {"step", step}});
}

void Agent::on_attach(const std::shared_ptr<WorkerProcess>& process, const messages::Attach& attach) {
  if (process->attached) {  // they share a socket: nothing that either is told can be relied on
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
                            .drain = drain_socket_,
                            .inject = faults_.waiting(),
                            .comm = comm_config_};
  for (const auto& [name, value] : rank_environment(core_.config.spec, RankAssignment{})) {
    welcome.rank_variables.push_back(name);
  }
  core_.tell(*process, {}, welcome);
  process->attached = true;
  if (core_.config.spec.no_python) {
    on_program_attached(*process);
  }
}

void Agent::on_program_attached(const WorkerProcess& process) {
  on_programs_attach();
  step(brain::Attached{process.id});  // it may have had its rank before anybody knew that it would ask
}

// One program of the job attached, here or on another node: so will all, and each can be replaced.
void Agent::on_programs_attach() {
  if (std::exchange(programs_attach_, true)) {
    return;
  }
  for (const auto& [id, process] : Workers(core_.workers)) {
    if (process->attached || core_.is_dead(*process)) {
      continue;
    }
    process->recoverable = true;
    core_.link->send(brain::WorkerRecoverable{id});
    if (process->pid == 0 && !core_.rank_of(*process).has_value()) {
      starter_->spawn(process, job_variables());  // a spare that was held back
    }
  }
  for (const auto& [node, name] : core_.joined) {
    tell_that_programs_attach(node);
  }
}

// For ranks that die after their vote and before they can report. Their pages may be gone when the line is written: the
// next generation may not form either.
void Agent::keep_losses(const std::vector<Generation::Holder>& holders) {
  if (core_.brain.prepared()->members.size() < core_.world()) {
    return;  // one node has only a part of the sum; the mean comes with the votes
  }
  for (const Generation::Holder& holder : holders) {
    for (const rank::LossSlot& slot : holder.page->loss) {
      if (const brain::Step step = slot.step.load(); step != 0) {
        core_.metrics.keep(holder.rank, step, core_.brain.identity(), {slot.sum.load(), slot.micro_batches.load()});
      }
    }
  }
}

void Agent::collect(WorkerProcess& process) {
  const auto on_log = [&](brain::Step step, std::string_view text) {
    const nlohmann::json values = nlohmann::json::parse(text, nullptr, false);
    if (!values.is_object()) {
      refuse(process, absl::StrFormat("what it logged for step %d is no JSON object", step));
    } else if (const auto rank = core_.rank_of(process); rank.has_value()) {
      core_.metrics.on_log(*rank, step, values);
    }
  };
  const Status status = process.log.collect(
      process.memory.data() + rank::WorkerLayout::kLog,
      [&](const rank::CommitRecord& record) { on_commit(process, record); }, on_log);
  if (!status.ok()) {
    refuse(process, std::string(status.message()));
  }
}

void Agent::collect_all() {
  for (const auto& [id, process] : core_.workers) {
    collect(*process);
  }
}

void Agent::on_commit(const WorkerProcess& process, const rank::CommitRecord& record) {
  const std::optional<brain::Rank> rank = core_.rank_of(process);
  if (!rank.has_value()) {
    return;
  }
  pace_.note(*rank, record);
  const std::vector<brain::Rank> ranks = core_.ranks_here();
  std::optional<LossPart> part;
  std::optional<double> mean;
  if (record.has_mean) {
    mean = record.mean;
  } else if (record.has_loss && ranks.size() == core_.world()) {
    part = LossPart{record.loss_sum, record.micro_batches};
  }
  const bool complete =
      core_.metrics.on_progress(*rank, record.step, record.identity, record.committed_ns, ranks, part, mean);
  if (!complete) {
    return;
  }
  if (!first_commit_told_ && record.identity == core_.brain.identity()) {
    first_commit_told_ = true;
    step(brain::FormedByCommit{record.identity});  // where another node's rank said so, a commit is the proof
    core_.journal.write("first_commit", record.identity, "",
                        {{"step", static_cast<int64_t>(record.step)},
                         {"committed_mono", static_cast<double>(core_.metrics.last_commit_ns()) * 1e-9}});
    // Where the step is the redo of one that ranks had differed in, this tells who was right.
    core_.link->send(brain::Progress{record.identity, record.step, record.digest});
  } else if (record.step % 100 == 0) {
    core_.link->send(brain::Progress{record.identity, record.step});
  }
}

void Agent::on_store(const WorkerProcess& process, const messages::StoreQuestion& question, std::vector<Fd> fds) {
  StatusOr<std::string> value = messages::value_of(question.value, std::move(fds));
  if (!value.ok()) {
    refuse(process, std::string(value.status().message()));
    return;
  }
  carry_out(store_.ask({process.id, question.id, question.op, question.key.bytes, *std::move(value)}));
}

// A traceback, an injected fault, what made it unfit: they may still be in the socket of one that died.
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
    step(brain::WorkerDied{process->id, process->pid, -1, 0, "robust mutex", process->traceback, process->unfit});
  }
}

// By value: it may be the last owner.  NOLINTNEXTLINE(performance-unnecessary-value-param)
void Agent::on_exit(std::shared_ptr<WorkerProcess> process) {
  const std::optional<ExitStatus> status = process->pidfd.valid() ? try_reap(*process) : std::nullopt;
  if (!status.has_value()) {
    return;
  }
  read_last_words(process);
  collect(*process);
  core_.loop->unwatch(process->pidfd.get());
  process->pidfd.reset();
  core_.loop->unwatch(process->socket.fd());
  carry_out(store_.forget(process->id));
  // What the worker had started (loaders, subprocesses) is in its process group, and ends with it.
  if (kill(-process->pid, SIGKILL) == 0) {
    core_.groups.insert(process->pid);
  }
  temp_.remove(process->id);
  core_.pump.drain(process->id, 20);
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
                           process->unfit});
  }
  finish_if_empty();
}

// A log without a terminal, and a job without a journal, should show a recovery too.
void Agent::say_recovered() {
  const brain::Prepare& prepare = *core_.brain.prepared();
  core_.pump.say(absl::StrFormat("keepstep: %s; generation %d goes on from step %d", prepare.because,
                                 prepare.identity.generation, prepare.version + 1));
}

// What people are told of the moment: what goes on, else who holds it up.
std::string Agent::note() const {
  if (!note_.empty()) {
    return note_;
  }
  if (!saves_.late().empty()) {
    const auto& [where, step] = *saves_.late().begin();
    return absl::StrFormat("checkpoints to %s are late since step %d", where, step);
  }
  return pace_.in_words();
}

void Agent::update_status() {
  observe::RunStatus now;
  if (core_.metrics.last_step() != 0) {
    now.step = core_.metrics.last_step();
  }
  now.step_time_s = core_.metrics.step_time_s();
  now.loss = core_.metrics.last_loss();
  now.world_size = static_cast<uint32_t>(core_.config.spec.several_nodes() ? core_.ranks_here().size() : core_.world());
  for (const auto& [id, process] : core_.workers) {
    const bool has_rank = core_.rank_of(*process).has_value();
    now.ranks += !core_.is_dead(*process) && has_rank;
    now.spares += !core_.is_dead(*process) && !has_rank && process->parked;
  }
  now.generation = core_.brain.identity().generation;
  now.recoveries = recoveries_;
  now.note = note();
  if (core_.config.spec.several_nodes()) {
    now.note = absl::StrFormat("node %d%s%s", core_.config.node, now.note.empty() ? "" : ": ", now.note);
  }
  status_.update(now);
}

}  // namespace keepstep::agent
