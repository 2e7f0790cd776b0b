#include "cli/commands/job_doors.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_join.h"
#include "base/shared_memory.h"
#include "base/socket/local_socket.h"

namespace keepstep::cli {
namespace {

using std::chrono::milliseconds;

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  return !a.empty() && !b.empty() && std::filesystem::equivalent(a, b, error) && !error;
}

std::string list_of(const Jobs& jobs) {
  if (jobs.empty()) {
    return "No job of yours runs on this machine.";
  }
  return "Jobs of yours on this machine: " +
         absl::StrJoin(jobs, "; ", [](std::string* out, const RunningJob& job) { out->append(job.text()); });
}

}  // namespace

std::string RunningJob::text() const {
  if (!problem.empty()) {
    return absl::StrFormat("%s (pid %d: %s)", door.job, pid, problem);
  }
  const int nodes = description.value("nodes", 1);
  return absl::StrFormat("%s (pid %d%s, step %d)", door.job, pid,
                         nodes > 1 ? absl::StrFormat(", node %d of %d", description.value("node", 0), nodes) : "",
                         description.value("step", int64_t{0}));
}

StatusOr<DoorClient> DoorClient::open(const agent::DoorName& door) {
  KEEPSTEP_ASSIGN_OR_RETURN(PacketSocket socket, connect_local(door.path));
  KEEPSTEP_ASSIGN_OR_RETURN(const Peer launcher, trusted_peer(socket.fd()));
  return DoorClient(std::move(socket), launcher.pid);
}

StatusOr<DoorClient> DoorClient::open(const RunningJob& job) {
  return job.problem.empty() ? open(job.door) : absl::DeadlineExceededError(job.problem);
}

StatusOr<nlohmann::json> DoorClient::ask(const nlohmann::json& request, milliseconds limit) const {
  const auto ended = [&](const Status&) {
    return absl::UnavailableError(absl::StrFormat("the launcher (pid %d) ended before it answered", pid_));
  };
  if (const Status sent = socket_.try_send(request.dump()); !sent.ok()) {
    return ended(sent);
  }
  pollfd readable{.fd = socket_.fd(), .events = POLLIN};
  if (poll(&readable, 1, static_cast<int>(limit.count())) <= 0) {
    return absl::DeadlineExceededError(
        absl::StrFormat("the launcher (pid %d) did not answer within %g s; is it stopped? (ps -o stat= -p %d)", pid_,
                        std::chrono::duration<double>(limit).count(), pid_));
  }
  StatusOr<Packet> packet = socket_.receive();
  if (!packet.ok()) {
    return ended(packet.status());
  }
  nlohmann::json answer = nlohmann::json::parse(packet->bytes, nullptr, false);
  if (answer.is_object() && answer.contains("bytes") && packet->fds.size() == 1) {
    const size_t size = answer.value("bytes", size_t{0});
    if (size == 0 || size > agent::kMaxAnswerBytes) {
      return absl::InvalidArgumentError(absl::StrFormat("the launcher (pid %d) answers with %d bytes", pid_, size));
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const SharedMemory memory, SharedMemory::attach(std::move(packet->fds[0]), size));
    answer =
        nlohmann::json::parse(std::string_view(reinterpret_cast<const char*>(memory.data()), size), nullptr, false);
  }
  return accepted(std::move(answer), absl::StrFormat("the launcher (pid %d)", pid_));
}

StatusOr<nlohmann::json> accepted(nlohmann::json answer, const std::string& who) {
  if (!answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean()) {
    return absl::InvalidArgumentError(who + " gives an answer that this version does not understand");
  }
  if (!answer["ok"].get<bool>()) {
    const auto error = answer.find("error");
    return absl::FailedPreconditionError(error != answer.end() && error->is_string() ? error->get<std::string>()
                                                                                     : who + " refused");
  }
  return answer;
}

Jobs find_jobs(milliseconds limit) {
  Jobs jobs;
  for (const agent::DoorName& door : agent::find_doors()) {
    RunningJob job{door, 0, {}, ""};
    const StatusOr<DoorClient> client = DoorClient::open(door);
    if (!client.ok()) {
      continue;  // it has ended since the list was made
    }
    job.pid = client->pid();
    StatusOr<nlohmann::json> described = client->ask({{"op", "describe"}}, limit);
    if (described.ok()) {
      job.description = *std::move(described);
    } else {
      job.problem = std::string(described.status().message());
    }
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const RunningJob& a, const RunningJob& b) {
    return std::pair(a.door.job, a.pid) < std::pair(b.door.job, b.pid);
  });
  return jobs;
}

Jobs without_other_nodes(Jobs jobs) {
  const auto is_first = [](const RunningJob& job) {
    return job.problem.empty() && job.description.value("node", 0) == 0;
  };
  std::set<std::string> with_first;
  for (const RunningJob& job : jobs) {
    if (is_first(job)) {
      with_first.insert(job.door.job);
    }
  }
  std::erase_if(jobs, [&](const RunningJob& job) {
    return job.problem.empty() && !is_first(job) && with_first.contains(job.door.job);
  });
  return jobs;
}

StatusOr<RunningJob> choose_job(const Jobs& jobs, const std::string& word) {
  if (word.empty()) {
    if (jobs.size() == 1) {
      return jobs.front();
    }
    return jobs.empty() ? absl::NotFoundError(list_of(jobs))
                        : absl::InvalidArgumentError("Several jobs run; say which. " + list_of(jobs));
  }
  std::vector<RunningJob> meant;
  for (const RunningJob& job : jobs) {
    if (job.door.job == word || std::to_string(job.pid) == word ||
        (job.problem.empty() && same_folder(job.description.value("journal", ""), word))) {
      meant.push_back(job);
    }
  }
  if (meant.size() == 1) {
    return meant.front();
  }
  if (meant.size() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' means %d launchers; say which by its pid: %s", word, meant.size(),
        absl::StrJoin(meant, "; ", [](std::string* out, const RunningJob& job) { out->append(job.text()); })));
  }
  return absl::NotFoundError(absl::StrFormat(
      "no job '%s' (a job's name, its journal's folder, its launcher's pid, or HOST:PORT). %s", word, list_of(jobs)));
}

}  // namespace keepstep::cli
