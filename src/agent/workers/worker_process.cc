#include "agent/workers/worker_process.h"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace keepstep::agent {

brain::Version WorkerProcess::committed(brain::Identity identity) const {
  // In this order: the rank clears what it committed before it opens the generation's first step (rank/vote/steps.cc).
  const brain::StepWord word = brain::unpack_step_word(page().word.load());
  return word.identity == identity ? page().progress.committed.load(std::memory_order_acquire) : 0;
}

StatusOr<std::shared_ptr<WorkerProcess>> WorkerProcess::create(brain::WorkerId id, bool spare,
                                                               const rank::WorkerLayout& layout) {
  auto process = std::make_shared<WorkerProcess>();
  process->id = id;
  process->spare = spare;
  KEEPSTEP_ASSIGN_OR_RETURN(process->memory,
                            SharedMemory::create("keepstep-worker-" + std::to_string(id), layout.bytes));
  rank::WorkerPage& page = process->page();
  page.magic = rank::kWorkerMagic;
  page.worker = id;
  if (!page.alive.init()) {
    return absl::InternalError("this system has no robust process-shared mutexes");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(auto sockets, PacketSocket::pair());
  process->socket = std::move(sockets.first);
  process->child_socket = std::move(sockets.second);
  return process;
}

void watch_life(std::shared_ptr<WorkerProcess> process, std::function<void()> on_death) {
  // Detached: it waits for the mutex for the worker's whole life, and holds the memory meanwhile.
  std::thread([process = std::move(process), on_death = std::move(on_death)] {
    RobustMutex& alive = process->page().alive;
    const RobustMutex::LockResult locked = alive.lock();
    alive.release_after(locked);
    if (locked == RobustMutex::LockResult::kOwnerDied) {
      on_death();
    }
  }).detach();
}

void kill_process(const WorkerProcess& process) {
  if (process.pidfd.valid()) {
    syscall(SYS_pidfd_send_signal, process.pidfd.get(), SIGKILL, nullptr, 0);
  }
}

std::optional<ExitStatus> try_reap(const WorkerProcess& process) {
  siginfo_t info{};
  if (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process.pidfd.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  if (info.si_code == CLD_EXITED) {
    return ExitStatus{0, info.si_status};
  }
  return ExitStatus{info.si_status, 0};
}

}  // namespace keepstep::agent
