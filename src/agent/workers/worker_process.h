// One incarnation of a worker as its agent sees it: memory, socket, process, and the two ways its death is noticed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/workers/outbox.h"
#include "base/fd.h"
#include "base/shared_memory.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"
#include "rank/link/page.h"

namespace keepstep::agent {

struct WorkerProcess {
  // Allocates the worker's memory and a socket pair. `child_socket` is the worker's end.
  static StatusOr<std::shared_ptr<WorkerProcess>> create(brain::WorkerId id, bool spare,
                                                         const rank::WorkerLayout& layout);

  rank::WorkerPage& page() const { return *reinterpret_cast<rank::WorkerPage*>(memory.data()); }
  // The newest step that it committed in this generation; 0: none. Versions begin again in another function, so what it
  // committed in another generation says nothing here.
  brain::Version committed(brain::Identity identity) const;

  brain::WorkerId id = brain::kNoWorker;
  bool spare = false;
  uint32_t functions = 0;  // recoverable functions that were over when it started
  SharedMemory memory;
  rank::LogReader log;
  PacketSocket socket;
  Outbox outbox;  // of `socket`
  PacketSocket child_socket;
  Fd child_stdout;
  Fd child_stderr;
  pid_t pid = 0;
  Fd pidfd;               // until its end is confirmed
  Fd kept;                // its memory for copies of other ranks' capsules, if any; outlives the process
  bool attached = false;  // its engine has been welcomed
  bool parked = false;
  bool recoverable = false;  // it entered a keepstep.recoverable function
  std::string traceback;     // of an uncaught exception, if it reported one
  std::string unfit;         // what its health check found, if it failed
};

// Waits in its own thread until `process` loses its life mutex, then calls `on_death` from that thread: a fraction of a
// millisecond after the kernel began to end the process. Not called after a clean exit. Call it once, after the worker
// attached (it holds the mutex from then on).
void watch_life(std::shared_ptr<WorkerProcess> process, std::function<void()> on_death);

// Sends SIGKILL if the process still runs.
void kill_process(const WorkerProcess& process);

struct ExitStatus {
  int signal = 0;
  int exit_code = 0;
};
// Reaps the process if it has ended. std::nullopt if it has not, or is not ours to reap yet (its intermediate parent
// still runs).
std::optional<ExitStatus> try_reap(const WorkerProcess& process);

}  // namespace keepstep::agent
