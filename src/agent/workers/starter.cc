#include "agent/workers/starter.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "agent/workers/start_process.h"
#include "base/check.h"

namespace keepstep::agent {

Starter::~Starter() { stop(); }

Status Starter::start() {
  if (spec_.start_by_exec || spec_.no_python) {
    callbacks_.on_note("zygote_skipped", "the job starts its workers by exec");
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(auto sockets, PacketSocket::pair());
  // Its number is above anything that a file action could overwrite.
  Fd child(fcntl(sockets.second.fd(), F_DUPFD_CLOEXEC, 100));
  const std::vector<std::string> argv = {spec_.python, "-m", "keepstep.zygote", "3"};
  // One BLAS/OpenMP thread while it imports: a second thread would make every fork unsafe.
  KEEPSTEP_ASSIGN_OR_RETURN(zygote_pid_, start_process(argv, {{child.get(), 3}},
                                                       {"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1",
                                                        "MKL_NUM_THREADS=1", "NUMEXPR_NUM_THREADS=1"}));
  zygote_ = std::move(sockets.first);
  use_zygote_ = true;
  return loop_.watch(zygote_.fd(), [this] { on_zygote_message(); });
}

nlohmann::json Starter::worker_spec(brain::WorkerId worker, const nlohmann::json& environment) const {
  return {{"worker", worker},
          {"script", spec_.script},
          {"module", spec_.module},
          {"args", spec_.script_args},
          {"environment", environment}};
}

void Starter::spawn(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment) {
  if (spec_.no_python) {
    spawn_program(process, environment);
    return;
  }
  if (!use_zygote_) {
    spawn_by_exec(process, environment);
    return;
  }
  nlohmann::json request = worker_spec(process->id, environment);
  request["op"] = "spawn";
  const int fds[] = {process->child_socket.fd(), process->memory.fd(), process->child_stdout.get(),
                     process->child_stderr.get()};
  pending_[process->id] = {process, environment};
  const Status sent = zygote_.send(request.dump(), fds);
  if (absl::IsInvalidArgument(sent)) {
    pending_.erase(process->id);
    callbacks_.on_note("fork_failed", absl::StrFormat("worker %d starts by exec: %s", process->id, sent.message()));
    spawn_by_exec(process, environment);
  } else if (!sent.ok() && !absl::IsUnavailable(sent)) {  // a zygote's end is read after its last messages
    zygote_lost();
  }
}

void Starter::on_zygote_message() {
  StatusOr<Packet> packet = zygote_.receive();
  if (!packet.ok()) {
    zygote_lost();
    return;
  }
  const nlohmann::json message = nlohmann::json::parse(packet->bytes, nullptr, false);
  if (!message.is_object()) {
    return;
  }
  const std::string op = message.value("op", "");
  if (op == "spawned" && packet->fds.size() == 1) {
    const brain::WorkerId worker = message.at("worker");
    if (pending_.erase(worker) == 0) {
      // It was started by exec meanwhile, and two processes must not share a socket.
      (void)syscall(SYS_pidfd_send_signal, packet->fds[0].get(), SIGKILL, nullptr, 0);
      return;
    }
    callbacks_.on_started(worker, message.at("pid"), std::move(packet->fds[0]), "fork");
  } else if (op == "failed") {
    if (const auto it = pending_.find(message.at("worker").get<brain::WorkerId>()); it != pending_.end()) {
      const Pending each = it->second;
      pending_.erase(it);
      callbacks_.on_note("fork_failed", message.value("why", ""));
      spawn_by_exec(each.process, each.environment);
    }
  } else if (op == "successor") {
    // A fork of the zygote that imported more takes its place, on the same socket; the old one exits with this message.
    waitpid(zygote_pid_, nullptr, 0);
    zygote_pid_ = message.at("pid");
  } else if (op == "unfit") {
    // It stays alive until the forks it already made are reported, but gets no more requests.
    callbacks_.on_note("zygote_unfit", message.value("why", ""));
    use_zygote_ = false;
    exec_pending();
  } else if (op == "note") {
    callbacks_.on_note(message.value("event", "zygote"), message.value("why", ""));
  }
}

void Starter::exec_pending() {
  const auto pending = std::exchange(pending_, {});
  for (const auto& [worker, each] : pending) {
    spawn_by_exec(each.process, each.environment);
  }
}

void Starter::zygote_lost() {
  KEEPSTEP_CHECK(zygote_pid_ > 0, "there is no zygote to lose");
  kill(zygote_pid_, SIGKILL);  // otherwise it would take the closed socket for the agent's end
  loop_.unwatch(zygote_.fd());
  zygote_ = PacketSocket();
  int status = 0;
  waitpid(zygote_pid_, &status, 0);
  zygote_pid_ = 0;
  use_zygote_ = false;
  callbacks_.on_note(
      "zygote_ended",
      WIFSIGNALED(status)
          ? absl::StrFormat("ended by signal %d; workers start by exec from here on", WTERMSIG(status))
          : absl::StrFormat("exited with code %d; workers start by exec from here on", WEXITSTATUS(status)));
  exec_pending();
}

namespace {

std::vector<std::string> variables_of(const nlohmann::json& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment.items()) {
    variables.push_back(name + "=" + value.get<std::string>());
  }
  return variables;
}

}  // namespace

void Starter::exec(const WorkerProcess& process, const std::vector<std::string>& argv,
                   const std::vector<std::pair<int, int>>& inherit, const std::vector<std::string>& variables) {
  std::vector<std::pair<int, int>> descriptors = {{process.child_stdout.get(), 1}, {process.child_stderr.get(), 2}};
  descriptors.insert(descriptors.end(), inherit.begin(), inherit.end());
  StatusOr<pid_t> pid = start_process(argv, descriptors, variables);
  if (!pid.ok()) {
    callbacks_.on_failed(process.id, std::string(pid.status().message()));
    return;
  }
  callbacks_.on_started(process.id, *pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0))), "exec");
}

void Starter::spawn_by_exec(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment) {
  std::vector<std::string> variables = variables_of(environment);
  variables.push_back("KEEPSTEP_WORKER_SPEC=" + worker_spec(process->id, environment).dump());
  const Fd socket(fcntl(process->child_socket.fd(), F_DUPFD_CLOEXEC, 100));
  const Fd memory(fcntl(process->memory.fd(), F_DUPFD_CLOEXEC, 100));
  exec(*process, {spec_.python, "-m", "keepstep.worker", "3", "4"}, {{socket.get(), 3}, {memory.get(), 4}}, variables);
}

void Starter::spawn_program(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment) {
  // It may have no engine to notice the agent's end, so the kernel kills it then.
  std::vector<std::string> argv = {"setpriv", "--pdeathsig", "KILL", "--", spec_.script};
  argv.insert(argv.end(), spec_.script_args.begin(), spec_.script_args.end());
  // High numbers, out of the way of a program that does not use them: scripts use the low ones.
  const Fd socket(fcntl(process->child_socket.fd(), F_DUPFD_CLOEXEC, 100));
  const Fd memory(fcntl(process->memory.fd(), F_DUPFD_CLOEXEC, 100));
  std::vector<std::string> variables = variables_of(environment);
  variables.push_back(absl::StrFormat("KEEPSTEP_WORKER_FDS=%d,%d", socket.get(), memory.get()));
  exec(*process, argv, {{socket.get(), socket.get()}, {memory.get(), memory.get()}}, variables);
}

void Starter::preload(const nlohmann::json& modules, const std::string& path, const nlohmann::json& environment) {
  if (use_zygote_ && spec_.preload) {
    const Status sent = zygote_.send(
        nlohmann::json{{"op", "preload"}, {"modules", modules}, {"path", path}, {"environment", environment}}.dump());
    if (absl::IsInvalidArgument(sent)) {
      callbacks_.on_note("preload_left_out", absl::StrFormat("all that the first worker imported: %s", sent.message()));
    }
  }
}

void Starter::stop() {
  if (zygote_pid_ != 0) {
    if (zygote_.valid()) {
      loop_.unwatch(zygote_.fd());
      zygote_ = PacketSocket();
    }
    kill(zygote_pid_, SIGKILL);  // it holds nothing; its children belong to the agent
    waitpid(zygote_pid_, nullptr, 0);
    zygote_pid_ = 0;
  }
}

}  // namespace keepstep::agent
