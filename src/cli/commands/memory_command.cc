#include "cli/commands/memory_command.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/memory_available.h"
#include "base/runtime_folder.h"
#include "base/socket/local_socket.h"
#include "checkpoint/memory/protocol.h"
#include "cli/commands/print.h"
#include "cli/options/memory_options.h"
#include "memory_server/server.h"

namespace keepstep::cli {
namespace {

using checkpoint::memory::Json;

constexpr const char* kHelp =
    R"(usage: keepstep memory serve [--limit SIZE] [--lifetime TIME] [--listen HOST:PORT] [--peer HOST:PORT]...
                             [--token-file FILE] [--background]
       keepstep memory status [--json]
       keepstep memory stop [--force]

Checkpoints in memory, memory://NAME, that outlive the jobs which wrote them. The first writer on a machine starts the
server by itself, with the variables below as its options; there is one for each user and machine.

  serve             serve in the foreground, until SIGTERM, Ctrl-C, `stop` or the end of its lifetime
    --limit SIZE      memory for contents: 64GiB, or 25% of the machine's (KEEPSTEP_MEMORY_LIMIT; default 50%, of the
                      memory cgroup's where that has less). When it is full, the oldest checkpoints go, never the newest
    --lifetime TIME   end when nobody was connected and nothing changed for so long: 90s, 30min, 12h, 2d, never
                      (KEEPSTEP_MEMORY_LIFETIME; default 24h)
    --listen ADDRESS  let the servers of other nodes in at this address: 10.0.0.7:4712 (KEEPSTEP_MEMORY_LISTEN)
    --peer ADDRESS    copy everything to the server there, and read from it what is not here; several times, or in
                      KEEPSTEP_MEMORY_PEERS with commas. One that is this server itself is left out
    --token-file FILE the token that all these servers share, with mode 0600 (KEEPSTEP_MEMORY_TOKEN_FILE; else
                      KEEPSTEP_TOKEN)
    --background      return when it serves; it is then in a session of its own
  status            what it holds and how full it is
  stop              end it: what only it holds is lost
    --force           even if something is not drained yet

exit codes: 0 success, for serve also when a server runs already; 1 it could not start, or none runs; 2 wrong options.
)";

int wrong(const std::vector<std::string>& mistakes) {
  for (const std::string& mistake : mistakes) {
    print_line(stderr, "keepstep memory: " + mistake);
  }
  std::fputs("`keepstep memory --help` lists the options.\n", stderr);
  return 2;
}

// Everything that whoever started us has open, such as pipes whose readers wait for their end.
void close_inherited() { (void)close_range(3, ~0U, 0); }

// Leaves the process group, the terminal, the output and the folder of whoever started us.
void detach() {
  setsid();
  (void)!chdir("/");
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nowhere, fd);
  }
}

int serve(const std::vector<std::string>& args) {
  const MemoryOptions options = parse_memory_serve(args, environment(), memory_total());
  if (!options.mistakes.empty()) {
    return wrong(options.mistakes);
  }
  if (options.background) {
    close_inherited();
  }
  init_log("memory");
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  for (const int each : {SIGTERM, SIGINT}) {
    (void)signal(each, SIG_DFL);  // whoever started us may ignore them
  }
  (void)signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_SETMASK, &ends, nullptr);
  auto server = memory_server::Server::create({.limit = options.limit_bytes,
                                               .lifetime = options.lifetime,
                                               .listen = options.listen,
                                               .peers = options.peers,
                                               .token = options.token});
  if (absl::IsAlreadyExists(server.status())) {
    if (!options.background) {
      std::puts("keepstep memory: a server runs here already; `keepstep memory status` shows it");
    }
    return 0;
  }
  if (!server.ok()) {
    print_line(stderr, absl::StrFormat("keepstep memory: %s", server.status().message()));
    return 1;
  }
  if (options.background) {
    const pid_t pid = fork();
    if (pid != 0) {
      if (pid < 0) {
        std::fprintf(stderr, "keepstep memory: cannot fork: %s\n", std::strerror(errno));
      }
      _exit(pid < 0 ? 1 : 0);  // the process that started this one can connect now
    }
    detach();
  } else {
    const auto& address = (*server)->address();
    print_line(stdout, absl::StrFormat("keepstep memory: serves, with a limit of %d MiB%s; Ctrl-C ends it",
                                       options.limit_bytes >> 20, address ? " and peers at " + address->text() : ""));
    std::fflush(stdout);
  }
  (*server)->run();
  return 0;
}

StatusOr<Json> ask(const Json& request) {
  StatusOr<PacketSocket> socket = absl::NotFoundError("no memory server of yours runs on this machine");
  for (const std::string& folder : runtime_folders()) {
    StatusOr<PacketSocket> found = connect_local(folder + "/" + checkpoint::memory::server_name());
    if (!absl::IsNotFound(found.status())) {
      socket = std::move(found);
      break;
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(socket.status());
  KEEPSTEP_RETURN_IF_ERROR(socket->send(request.dump()));
  KEEPSTEP_ASSIGN_OR_RETURN(const Packet packet, socket->receive());
  KEEPSTEP_ASSIGN_OR_RETURN(Json answer, checkpoint::memory::parse_message(packet.bytes));
  KEEPSTEP_RETURN_IF_ERROR(checkpoint::memory::status_of(answer));
  if (request.at("do") == "stop") {
    (void)socket->receive();  // it closes the connection when it ends
  }
  return answer;
}

std::string mib(const Json& bytes) { return absl::StrFormat("%.1f MiB", bytes.get<double>() / (1 << 20)); }

void print_status(const Json& told) {
  print_line(stdout, absl::StrFormat("memory server, pid %d, up %.0f s, %d clients", told.at("pid").get<int64_t>(),
                                     told.at("uptime_s").get<double>(), told.at("clients").get<int64_t>()));
  print_line(stdout,
             absl::StrFormat("%s of %s used; %s in checkpoints, %s of it different, %s with zstd",
                             mib(told.at("used_bytes")), mib(told.at("limit_bytes")), mib(told.at("logical_bytes")),
                             mib(told.at("unique_bytes")), mib(told.at("stored_bytes"))));
  for (const Json& peer : told.at("peers")) {
    const bool self = peer.at("self").get<bool>();
    const std::string state = self                               ? "this server itself"
                              : peer.at("connected").get<bool>() ? "connected"
                                                                 : peer.at("failure").get<std::string>();
    print_line(stdout, absl::StrFormat("peer %s: %s, %d objects wait", peer.at("address").get<std::string>(), state,
                                       peer.at("waiting").get<uint64_t>()));
  }
  for (const Json& destination : told.at("destinations")) {
    print_line(stdout, "memory://" + destination.at("name").get<std::string>());
    if (const Json& drain = destination.at("drain"); drain.is_object()) {
      print_line(
          stdout,
          absl::StrFormat("  drains to %s: %d done%s", drain.at("url").get<std::string>(), drain.at("drained").size(),
                          drain.at("failure") == "" ? "" : "; " + drain.at("failure").get<std::string>()));
    }
    for (const Json& version : destination.at("versions")) {
      print_line(stdout, absl::StrFormat("  step %-12d %-12s %10s  %.0f s old%s", version.at("step").get<uint64_t>(),
                                         version.at("complete").get<bool>() ? "complete" : "not complete",
                                         mib(version.at("bytes")), version.at("age_s").get<double>(),
                                         version.at("pinned").get<bool>() ? ", pinned" : ""));
    }
  }
}

int status(const std::vector<std::string>& args) {
  const bool as_json = args.size() == 1 && args[0] == "--json";
  if (!args.empty() && !as_json) {
    return wrong({absl::StrFormat("status takes --json, not '%s'", args[0])});
  }
  const StatusOr<Json> told = ask({{"do", "status"}});
  if (!told.ok()) {
    print_line(stderr, absl::StrFormat("keepstep memory: %s", told.status().message()));
    return 1;
  }
  if (as_json) {
    print_json(*told);
  } else {
    print_status(*told);
  }
  return 0;
}

int stop(const std::vector<std::string>& args) {
  const bool force = args.size() == 1 && args[0] == "--force";
  if (!args.empty() && !force) {
    return wrong({absl::StrFormat("stop takes --force, not '%s'", args[0])});
  }
  const StatusOr<Json> stopped = ask({{"do", "stop"}, {"force", force}});
  if (!stopped.ok()) {
    print_line(stderr, absl::StrFormat("keepstep memory: %s", stopped.status().message()));
    return 1;
  }
  return 0;
}

}  // namespace

int memory_main(const std::vector<std::string>& args) {
  const std::string what = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  for (const std::string& word : args) {
    if (word == "--help" || word == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
  }
  if (what == "serve") {
    return serve(rest);
  }
  if (what == "status") {
    return status(rest);
  }
  if (what == "stop") {
    return stop(rest);
  }
  return wrong({what.empty() ? std::string("serve, status or stop is needed")
                             : absl::StrFormat("'%s' is not known; there are serve, status and stop", what)});
}

}  // namespace keepstep::cli
