#include "cli/commands/node_command.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "agent/nodes/node_service.h"
#include "base/log.h"
#include "cli/commands/print.h"
#include "cli/options/node_options.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep node --job NAME [--nodes HOST:PORT,... --node K]

Serves those ranks of job NAME on this machine that `keepstep run` did not start, with shared memory for backend
"keepstep" and a Store without a root. Such ranks start it themselves, and it ends after them, so you need not call it.
It listens on a Unix socket in a folder that only this user can enter ($XDG_RUNTIME_DIR/keepstep, /run/user/UID/keepstep
or /tmp/keepstep-UID), and then moves to the background.

  --job NAME         the job; agents with another name or token are strangers
  --nodes ADDRESSES  the Store spans the agents at these numeric addresses, of all nodes; the connections between them
                     are protected by a token, from KEEPSTEP_STORE_TOKEN_FILE or KEEPSTEP_TOKEN
  --node K           which of the addresses is this node's, from 0

exit codes: 0 this process, or another one already, serves the job; 1 it could not listen; 2 wrong options.
)";

}  // namespace

int node_main(const std::vector<std::string>& args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const NodeOptions options = parse_node(args, environment());
  if (!options.mistakes.empty()) {
    for (const std::string& mistake : options.mistakes) {
      print_line(stderr, "keepstep node: " + mistake);
    }
    std::fputs("`keepstep node --help` lists the options.\n", stderr);
    return 2;
  }
  init_log("node");
  rlimit files{};  // a descriptor for each other node, and two for each rank
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  signal(SIGPIPE, SIG_IGN);
  auto service = agent::NodeService::create(options.job, options.nodes);
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
