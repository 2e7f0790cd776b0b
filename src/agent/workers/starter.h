// Starts worker processes: through the zygote, which forks one that has everything imported, or by exec if a fork would
// be unsafe (the zygote is tainted: an import started a thread or touched CUDA) or is not wanted.
//
// Loop thread only. `on_started` reports each process with its pid and pidfd.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "agent/job/job_spec.h"
#include "agent/loop/event_loop.h"
#include "agent/workers/worker_process.h"
#include "base/socket/packet_socket.h"

namespace keepstep::agent {

class Starter {
 public:
  struct Callbacks {
    // `how` is "fork" or "exec".
    std::function<void(brain::WorkerId, pid_t, Fd pidfd, const std::string& how)> on_started;
    std::function<void(brain::WorkerId, const std::string& why)> on_failed;
    // A line for the journal: the zygote is ready, is tainted by a module, ended, ...
    std::function<void(const std::string& event, const std::string& because)> on_note;
  };

  Starter(EventLoop& loop, const JobSpec& spec, Callbacks callbacks)
      : loop_(loop), spec_(spec), callbacks_(std::move(callbacks)) {}
  ~Starter();

  // Starts the zygote (unless the job starts by exec).
  Status start();
  // Asks for one worker and hands over its socket, memory and pipes. `environment` is set in the new process. With
  // `--no-python` it is the job's program, which may attach (KEEPSTEP_WORKER_FDS) or not know about keepstep at all.
  void spawn(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment);
  // What the first worker imported: forks of the zygote should have it imported already. `path`: where the worker's own
  // modules are found; `environment`: the variables of every worker.
  void preload(const nlohmann::json& modules, const std::string& path, const nlohmann::json& environment);
  void stop();

 private:
  nlohmann::json worker_spec(brain::WorkerId worker, const nlohmann::json& environment) const;
  void on_zygote_message();
  void zygote_lost();
  void exec_pending();  // workers requested from the zygote that it will not start
  void spawn_by_exec(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment);
  void spawn_program(const std::shared_ptr<WorkerProcess>& process, const nlohmann::json& environment);
  void exec(const WorkerProcess& process, const std::vector<std::string>& argv,
            const std::vector<std::pair<int, int>>& inherit, const std::vector<std::string>& variables);

  EventLoop& loop_;
  const JobSpec& spec_;
  Callbacks callbacks_;
  PacketSocket zygote_;
  pid_t zygote_pid_ = 0;
  bool use_zygote_ = false;
  struct Pending {
    std::shared_ptr<WorkerProcess> process;
    nlohmann::json environment;
  };
  std::map<brain::WorkerId, Pending> pending_;  // requested from the zygote, not answered yet
};

}  // namespace keepstep::agent
