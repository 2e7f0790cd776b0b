#include "cli/commands/node_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "agent/nodes/node_service.h"
#include "base/log.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep node --job NAME

Serves those ranks of job NAME on this machine that `keepstep run` did not start, with shared memory for backend
"keepstep" and a Store without a root. Such ranks start it themselves, and it ends after them, so you need not call it.
It listens on a Unix socket in a folder that only this user can enter ($XDG_RUNTIME_DIR/keepstep, /run/user/UID/keepstep
or /tmp/keepstep-UID), and then moves to the background.

exit codes: 0 this process, or another one already, serves the job; 1 it could not listen; 2 wrong options.
)";

}  // namespace

int node_main(const std::vector<std::string>& args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (args.size() != 2 || args[0] != "--job" || args[1].empty()) {
    std::fprintf(stderr, "keepstep node: it takes --job NAME\n%s", kHelp);
    return 2;
  }
  init_log("node");
  signal(SIGPIPE, SIG_IGN);
  auto service = agent::NodeService::create(args[1]);
  if (absl::IsAlreadyExists(service.status())) {
    return 0;
  }
  if (!service.ok()) {
    std::fprintf(stderr, "keepstep node: %s\n", std::string(service.status().message()).c_str());
    return 1;
  }
  const pid_t pid = fork();
  if (pid != 0) {
    if (pid < 0) {
      std::fprintf(stderr, "keepstep node: cannot fork: %s\n", std::strerror(errno));
    }
    _exit(pid < 0 ? 1 : 0);  // the process that started this one can connect now
  }
  // In a session of its own, so a Ctrl-C ends the ranks and not the agent; and without the ranks' output, because its
  // reader would wait for the agent to end.
  setsid();
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nowhere, fd);
  }
  (*service)->run();
  return 0;
}

}  // namespace keepstep::cli
