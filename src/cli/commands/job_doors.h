// How commands find the jobs of this machine: control doors (agent/control/control_door.h), the choice of the one that
// JOB means, and requests to it.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/control/control_door.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep::cli {

// One launcher: its description of itself, or why there is none.
struct RunningJob {
  agent::DoorName door;
  pid_t pid = 0;
  nlohmann::json description;  // the answer to "describe"
  std::string problem;         // why it does not answer; then there is no description

  // "train-4f2a (pid 4711, node 1 of 2, step 118)"
  std::string text() const;
};

// A launcher's door, open. Requests wait for their answer; not thread-safe.
class DoorClient {
 public:
  // NOT_FOUND: the launcher ended. PERMISSION_DENIED: it is another user's.
  static StatusOr<DoorClient> open(const agent::DoorName& door);
  // The same for a job from find_jobs(). DEADLINE_EXCEEDED: it did not answer then.
  static StatusOr<DoorClient> open(const RunningJob& job);
  // Returns the answer's object. DEADLINE_EXCEEDED: no answer within `limit`. UNAVAILABLE: the launcher ended before it
  // answered. FAILED_PRECONDITION: it refused; the message is the launcher's.
  StatusOr<nlohmann::json> ask(const nlohmann::json& request, std::chrono::milliseconds limit) const;
  pid_t pid() const { return pid_; }

 private:
  DoorClient(PacketSocket socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}
  PacketSocket socket_;
  pid_t pid_;
};

// The object of an answer from `who`. FAILED_PRECONDITION: it refused, with its message. INVALID_ARGUMENT: it is not an
// answer of this version.
StatusOr<nlohmann::json> accepted(nlohmann::json answer, const std::string& who);

using Jobs = std::vector<RunningJob>;
// Asks every launcher of this user on this machine for its description; one that does not answer within `limit` has a
// problem.
Jobs find_jobs(std::chrono::milliseconds limit = std::chrono::seconds(3));

// Leaves out launchers of other nodes if the same job's node 0 runs here too: for requests that node 0 decides. Pure.
Jobs without_other_nodes(Jobs jobs);

// The job that `word` means: its name, its journal's folder, or its launcher's pid. An empty word: the only job. Pure.
// The errors list the candidates.
StatusOr<RunningJob> choose_job(const Jobs& jobs, const std::string& word);

}  // namespace keepstep::cli
