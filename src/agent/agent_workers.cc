// The agent's other half: what workers say, and how their deaths are noticed.

#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/agent.h"
#include "agent/workers/torchrun_env.h"
#include "rank/link/comm_config.h"
#include "rank/link/store_messages.h"

namespace keepstep::agent {

using brain::WorkerId;
using rank::Message;
using rank::MessageType;

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
  StatusOr<Message> message = rank::decode(*packet);
  if (!message.ok()) {
    refuse(*process, std::string(message.status().message()));
    return;
  }
  try {
    if (message->type == MessageType::kStore) {
      on_store(process, *message, std::move(packet->fds));
    } else if (message->type == MessageType::kKept && packet->fds.size() == 1) {
      if (!core_.brain.outdated(message->identity)) {
        process->kept = std::move(packet->fds.front());
      }
    } else {
      on_message(process, *message);
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(*process, absl::StrFormat("a message of type %d without what it needs: %s", static_cast<int>(message->type),
                                     error.what()));
  }
}

void Agent::refuse(const WorkerProcess& process, const std::string& because) {
  core_.journal.write("refused", {}, because, {{"worker", int64_t{process.id}}, {"count", ++refused_}});
}

void Agent::on_message(const std::shared_ptr<WorkerProcess>& process, const Message& message) {
  collect(*process);  // what it did before it said so
  const nlohmann::json& body = message.body;
  switch (message.type) {
    case MessageType::kAttach:
      on_attach(process, message);
      break;
    case MessageType::kParked:
      process->parked = true;
      health_.passed();
      if (body.contains("rehearsed")) {
        core_.journal.write(body.at("rehearsed").get<bool>() ? "rehearsed" : "not_rehearsed", {},
                            body.value("because", ""),
                            {{"worker", int64_t{process->id}}, {"seconds", body.at("seconds").get<double>()}});
      }
      core_.link->send(brain::WorkerParked{process->id, process->pid});
      break;
    case MessageType::kRecoverable:
      process->recoverable = true;
      step(brain::LeaveLimit{process->id, std::chrono::duration_cast<brain::Time>(std::chrono::duration<double>(
                                              std::min(body.value("timeout_s", 0.0), kMostSeconds)))});
      core_.link->send(brain::WorkerRecoverable{process->id});
      break;
    case MessageType::kPreload:
      if (!preload_sent_) {
        preload_sent_ = true;
        starter_->preload(body.at("modules"), body.at("path"), job_variables());
      }
      break;
    case MessageType::kReady:
      step(brain::Ready{process->id,
                        message.identity,
                        {static_cast<brain::StateKind>(body.at("state").get<int>()), body.at("version")},
                        body.value("sharded", false)});
      break;
    case MessageType::kHydrated:
      core_.journal.write("hydrated", message.identity, "",
                          {{"rank", int64_t{core_.rank_of(*process).value_or(0)}},
                           {"worker", int64_t{process->id}},
                           {"bytes", body.at("bytes").get<int64_t>()},
                           {"skipped", body.at("skipped").get<int64_t>()},
                           {"repeated", body.at("repeated").get<int64_t>()},
                           {"seconds", body.at("seconds").get<double>()},
                           {"sources", body.at("sources").get<std::vector<int64_t>>()},
                           {"bytes_from", body.at("bytes_from").get<std::vector<int64_t>>()}});
      break;
    case MessageType::kFormed:
      step(brain::Formed{message.identity});
      break;
    case MessageType::kCollect:
      break;  // that is done
    case MessageType::kFault:
      core_.link->send(brain::WorkerFaulted{process->id, message.identity, body.at("step"), body.at("what"),
                                            body.at("traceback"), body.at("fatal"), body.value("link", false),
                                            body.value("digests", false), body.value("after_commit", false)});
      break;
    case MessageType::kPaused:
      core_.link->send(brain::WorkerPaused{process->id, message.identity});
      break;
    case MessageType::kUseful:
      if (core_.config.spec.elastic) {
        core_.link->send(brain::MostUseful{body.at("ranks"), body.value("sizes", std::vector<uint32_t>())});
      }
      break;
    case MessageType::kFinished:
      if (core_.log_watch != nullptr) {
        core_.log_watch->ended(process->id);
      }
      notice_.ranks_stopped(body.value("notice", false));
      core_.link->send(brain::WorkerFinished{process->id, message.identity});
      break;
    case MessageType::kCrashed:
      process->traceback = body.value("traceback", "");
      break;
    case MessageType::kUnfit:
      health_.on_unfit(process, body);
      break;
    case MessageType::kSaved:
      core_.link->send(brain::Saved{body.at("version"), body.at("generation")});
      on_saved(message);
      break;
    case MessageType::kSettled:
      step(brain::Settled{message.body.at("sharding")});
      break;
    case MessageType::kVault:
      on_vault(process, message);
      break;
    case MessageType::kNote:
      on_note(*process, message);
      break;
    case MessageType::kInjected:
      if (!faults_.on_injected(process, message)) {
        refuse(*process, "it carries out a fault that nobody asked for: " + body.at("key").get<std::string>());
      }
      break;
    default:
      refuse(*process, "a message of an unknown type");
  }
}

void Agent::on_vault(const std::shared_ptr<WorkerProcess>& process, const Message& message) {
  const nlohmann::json& body = message.body;
  const auto answer = [this, process, identity = message.identity,
                       id = body.at("id").get<uint64_t>()](const StatusOr<int>& memory) {
    const std::vector<int> fds = memory.ok() ? std::vector<int>{*memory} : std::vector<int>{};
    core_.tell(*process, MessageType::kVaultReply, identity,
               {{"id", id}, {"error", std::string(memory.status().message())}}, fds);
  };
  ShardVaults::Of of{body.at("sharding"), {}};
  if (body.contains("members")) {
    brain::ParityBlock block{body.at("members"), body.at("row")};
    if (!brain::is_possible(block)) {
      answer(absl::InvalidArgumentError("no code has such a block of parity"));
      return;
    }
    of.what = std::move(block);
  } else {
    of.what = body.at("rank").get<brain::Rank>();
  }
  if (body.contains("version")) {
    answer(vaults_.holding(of, body.at("version").get<brain::Version>()));
  } else {
    vault_maker_->ask({std::move(of), body.at("data_bytes"), body.at("text_room")}, answer);
  }
}

void Agent::on_saved(const Message& message) {
  const nlohmann::json& body = message.body;
  const std::string where = body.value("where", "");
  core_.journal.write("saved", message.identity, where,
                      {{"version", body.at("version").get<int64_t>()},
                       {"seconds", body.value("seconds", 0.0)},
                       {"left_out", body.value("left_out", int64_t{0})},
                       {"left_out_steps", body.value("left_out_steps", std::vector<int64_t>{})}});
  saves_.spoke_of(where);
  if (saves_.in_time(where)) {
    update_status();
  }
}

void Agent::on_note(const WorkerProcess& process, const Message& message) {
  const std::string event = message.body.at("event");
  const bool of_a_save = event == "not_saved" || event == "save_late";
  const bool of_a_shard = event == "shard_rebuilt" || event == "corrupt_copy";
  if (!of_a_save && !of_a_shard && event != "veto" && event != "not_compared") {
    refuse(process, absl::StrFormat("a note of '%s', which is none", event));
    return;
  }
  if (of_a_save) {
    const std::string where = message.body.value("where", "");
    saves_.spoke_of(where);
    saves_.late(where, message.body.at("step"));
    update_status();
  }
  core_.journal.write(event, message.identity, message.body.at("because").get<std::string>(),
                      {{"worker", int64_t{process.id}},
                       {"rank", int64_t{core_.rank_of(process).value_or(0)}},
                       {"step", message.body.at("step").get<int64_t>()}});
}

void Agent::on_attach(const std::shared_ptr<WorkerProcess>& process, const Message& message) {
  if (process->attached) {  // they share a socket: nothing that either is told can be relied on
    core_.stop_job(1, absl::StrFormat("two programs of worker %d (pid %d) attached; does a script start several?",
                                      process->id, process->pid));
    return;
  }
  watch_life(process,
             [this, process, loop = core_.loop] { loop->post([this, process] { on_death_notice(process); }); });
  const std::string fingerprint = message.body.at("fingerprint").dump();
  if (fingerprint_.empty()) {
    fingerprint_ = fingerprint;
    if (core_.config.node == 0) {
      joining_.on_fingerprint(0, message.body.at("fingerprint"));
    } else {
      core_.route(0, 'P', fingerprint);
    }
  } else if (fingerprint_ != fingerprint) {
    core_.stop_job(
        1, absl::StrFormat("worker %d (pid %d) would not compute the same bits as the others: it has %s, they have %s. "
                           "Does the script, or an import, change the number of threads or determinism flags only "
                           "sometimes?",
                           process->id, process->pid, fingerprint, fingerprint_));
    return;
  }
  nlohmann::json rank_variables = nlohmann::json::array();
  for (const auto& [name, value] : rank_environment(core_.config.spec, RankAssignment{})) {
    rank_variables.push_back(name);
  }
  nlohmann::json body = {{"worker", process->id},
                         {"spare", process->spare},
                         {"seed", core_.config.spec.seed},
                         {"check_all", core_.config.spec.check_all_steps},
                         {"digests", core_.config.spec.digests},
                         {"digest_every", core_.config.spec.digest_every},
                         {"world", core_.world()},
                         {"several_nodes", core_.config.spec.several_nodes()},
                         {"elastic", core_.config.spec.elastic.has_value()},
                         {"health_check", core_.config.spec.health_check},
                         {"inject", faults_.waiting()},
                         {"rank_variables", rank_variables},
                         {"rings", rings_socket_},
                         {"drain", drain_socket_},
                         {"learn", core_.config.spec.preload && !preload_sent_},
                         {"term_is_notice", is_notice(core_.config.spec, SIGTERM)},
                         {"comm", rank::to_json(comm_config_)}};
  core_.tell(*process, MessageType::kWelcome, {}, std::move(body));
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

void Agent::on_store(const std::shared_ptr<WorkerProcess>& process, const Message& message, std::vector<Fd> fds) {
  StatusOr<std::string> value = rank::store_value(message.body, std::move(fds));
  if (!value.ok()) {
    refuse(*process, std::string(value.status().message()));
    return;
  }
  carry_out(store_.ask(
      {process->id, message.body.at("id"), message.body.at("op"), message.body.at("key"), *std::move(value)}));
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
