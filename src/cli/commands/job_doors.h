// The jobs of this machine as commands find them: control doors (agent/control/control_door.h), which one is meant by
// JOB, and requests to it.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/control/control_door.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep::cli {

// One launcher, as it described itself; or why it did not.
struct RunningJob {
  agent::DoorName door;
  pid_t pid = 0;
  nlohmann::json description;  // of the request "describe"
  std::string problem;         // it does not answer; then there is no description

  // "train-4f2a (pid 4711, node 1 of 2, step 118)"
  std::string text() const;
};

// A launcher's door, open. Requests wait for their answer; not thread-safe.
class DoorClient {
 public:
  // NOT_FOUND: it ended. PERMISSION_DENIED: another user's.
  static StatusOr<DoorClient> open(const agent::DoorName& door);
  // The same for a job that find_jobs() found. DEADLINE_EXCEEDED: it did not answer then.
  static StatusOr<DoorClient> open(const RunningJob& job);
  // The answer's object. DEADLINE_EXCEEDED: none within `limit`. UNAVAILABLE: the launcher ended before it answered.
  // FAILED_PRECONDITION: it refused; the message is the launcher's.
  StatusOr<nlohmann::json> ask(const nlohmann::json& request, std::chrono::milliseconds limit) const;
  pid_t pid() const { return pid_; }

 private:
  DoorClient(PacketSocket socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}
  PacketSocket socket_;
  pid_t pid_;
};

// An answer's object as it came from `who`. FAILED_PRECONDITION: it refused, in its words. INVALID_ARGUMENT: it is no
// answer of this version.
StatusOr<nlohmann::json> accepted(nlohmann::json answer, const std::string& who);

using Jobs = std::vector<RunningJob>;
// Asks every launcher of this user on this machine who it is; one that does not answer within `limit` has a problem.
Jobs find_jobs(std::chrono::milliseconds limit = std::chrono::seconds(3));

// Without launchers of other nodes where that of node 0 of the same job runs here too: for what node 0 decides. Pure.
Jobs without_other_nodes(Jobs jobs);

// The job that `word` means: its name, its journal's folder, or its launcher's pid. An empty word: the only one.
// Pure. The errors list what there is.
StatusOr<RunningJob> choose_job(const Jobs& jobs, const std::string& word);

}  // namespace keepstep::cli
