#include "rank/link/node_start.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace keepstep::rank {
namespace {

constexpr int kTries = 20;  // one fails only if the agent ended between its start and our connection

// Runs `command node --job JOB ...`, which returns once an agent listens.
Status start(const std::string& job, const std::string& command, const std::optional<NodeAddresses>& nodes) {
  std::vector<std::string> words = {command, "node", "--job", job};
  if (nodes) {
    words.insert(words.end(), {"--nodes", nodes->addresses, "--node", std::to_string(nodes->self)});
  }
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command.c_str(), nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrFormat("cannot start this node's agent: %s: %s. Is the command keepstep installed? KEEPSTEP_COMMAND "
                        "may hold its path",
                        command, strerror(error)));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::UnavailableError(absl::StrFormat("this node's agent could not start: `%s node` ended with status %d",
                                                  command, WIFEXITED(status) ? WEXITSTATUS(status) : status));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<NodeLink>> connect_or_start(const std::string& job, const std::string& command,
                                                     const std::optional<NodeAddresses>& nodes) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    StatusOr<std::unique_ptr<NodeLink>> link =
        NodeLink::connect(nodes ? job_on_node(job, nodes->addresses, nodes->self) : job);
    if (!absl::IsNotFound(link.status())) {
      return link;
    }
    KEEPSTEP_RETURN_IF_ERROR(start(job, command, nodes));
  }
  return absl::UnavailableError("this node's agent ends as soon as it starts");
}

}  // namespace keepstep::rank
