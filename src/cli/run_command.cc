#include "cli/run_command.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "agent/agent.h"
#include "agent/endpoint.h"
#include "agent/preflight.h"
#include "base/log.h"
#include "cli/run_option_table.h"
#include "cli/run_options.h"
#include "cli/version.h"
#include "coordinator/coordinator.h"

namespace keepstep::cli {
namespace {

constexpr uint32_t kTerm = 1;  // one embedded coordinator for the job's whole life

void print_lines(const char* kind, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    std::fprintf(stderr, "keepstep: %s: %s\n", kind, line.c_str());
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "keepstep: error: %s\n", std::string(status.message()).c_str());
  return 1;
}

brain::MembershipConfig membership_config(const agent::JobSpec& spec) {
  brain::MembershipConfig config;
  config.term = kTerm;
  config.nodes = spec.nnodes;
  config.world_size = spec.world_size();
  config.spares = spec.spares;
  config.spare_nodes = spec.spare_nodes;
  config.ladder.restarts = spec.max_restarts;
  config.ladder.faults_per_node = spec.node_faults;
  config.ladder.node_window = std::chrono::milliseconds(static_cast<int64_t>(spec.fault_window_s * 1000));
  config.interrupt_timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.interrupt_timeout_s * 1000));
  return config;
}

// Where the parts of the job meet, as this node sees it.
struct Meeting {
  std::string listen;       // node 0: where its coordinator listens
  std::string coordinator;  // other nodes: where they reach it
  brain::NodeEndpoint endpoint{brain::ipv4(127, 0, 0, 1), 0};
  agent::NodePorts ports;
};

// One node: a socket without a port, which no other machine can reach, and ranks that meet in shared memory.
Meeting meet_alone() {
  Meeting meeting;
  meeting.listen = absl::StrFormat("unix-abstract:keepstep-%d-%s", getpid(), to_hex(random_nonce()));
  return meeting;
}

// CANCELLED when a signal came; `got` is its number.
StatusOr<Meeting> meet_others(const agent::JobSpec& spec, const sigset_t& signals, int& got) {
  Meeting meeting;
  std::string local_ip;
  if (spec.node_rank == 0) {
    KEEPSTEP_ASSIGN_OR_RETURN(
        const SocketAddress own,
        agent::own_address(spec.endpoint_host, spec.endpoint_port,
                           "node 0 listens at --rdzv-endpoint (or --master-addr) and must run on that machine"));
    meeting.listen = own.text();
    local_ip = own.ip;
  } else {
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.join_timeout_s * 1000));
    KEEPSTEP_ASSIGN_OR_RETURN(const agent::Route route,
                              agent::find_route(spec.endpoint_host, spec.endpoint_port, timeout, signals, got));
    meeting.coordinator = route.coordinator.text();
    local_ip = route.local_ip;
  }
  if (!spec.local_addr.empty()) {
    KEEPSTEP_ASSIGN_OR_RETURN(
        const SocketAddress own,
        agent::own_address(spec.local_addr, 0, "--local-addr is the address of this node for the others"));
    local_ip = own.ip;
  }
  KEEPSTEP_ASSIGN_OR_RETURN(meeting.endpoint.address, agent::address_from_text(local_ip));
  KEEPSTEP_ASSIGN_OR_RETURN(meeting.ports, agent::open_ports(local_ip, spec.nproc_per_node, agent::kMasterPorts));
  meeting.endpoint.port_base = meeting.ports.base;
  return meeting;
}

int exit_with(const agent::JobEnd& end) {
  if (end.exit_code != 0) {
    if (!end.traceback.empty()) {
      std::fprintf(stderr, "%s%s", end.traceback.c_str(), end.traceback.ends_with('\n') ? "" : "\n");
    }
    std::fprintf(stderr, "keepstep: %s\n", end.message.c_str());
  }
  return end.exit_code;
}

}  // namespace

int run_main(const std::vector<std::string>& args) {
  StatusOr<RunRequest> request = parse_run_options(args, current_surroundings());
  if (!request.ok()) {
    std::fprintf(stderr, "%s\n", std::string(request.status().message()).c_str());
    return 2;
  }
  if (request->action != RunRequest::Action::kRun) {
    const bool markdown = request->action == RunRequest::Action::kHelpMarkdown;
    std::fputs((markdown ? run_help_markdown() : run_help()).c_str(), stdout);
    return 0;
  }
  print_lines("warning", request->warnings);
  agent::JobSpec spec = std::move(request->spec);
  init_log("agent");
  const agent::PreflightReport report = agent::preflight(spec, agent::shared_memory_bytes(spec));
  print_lines("warning", report.warnings);
  if (!report.ok()) {
    print_lines("error", report.errors);
    return 1;
  }
  StatusOr<JobToken> token = spec.token.empty() ? StatusOr<JobToken>(JobToken::random()) : JobToken::parse(spec.token);
  if (!token.ok()) {
    return fail(token.status());
  }
  unsetenv("KEEPSTEP_TOKEN");  // workers get it from their agent; what they start in turn need not have it
  // Blocked before any thread starts, so that only the agent's signalfd sees them.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  int got = 0;
  StatusOr<Meeting> meeting = spec.several_nodes() ? meet_others(spec, signals, got) : meet_alone();
  if (!meeting.ok()) {
    return got != 0 ? exit_with({128 + got, absl::StrFormat("stopped by %s", strsignal(got)), ""})
                    : fail(meeting.status());
  }
  auto journal = observe::Journal::open(spec.journal_dir, spec.node_rank);
  if (!journal.ok()) {
    return fail(journal.status());
  }
  std::unique_ptr<coordinator::Coordinator> coordinator;
  if (spec.node_rank == 0) {
    (*journal)->write("job_started", {kTerm, 0}, "",
                      {{"world_size", int64_t{spec.world_size()}},
                       {"spares", int64_t{spec.spares}},
                       {"script", spec.script},
                       {"version", std::string(kVersion)}});
    auto started = coordinator::Coordinator::start({membership_config(spec), meeting->listen, *token}, journal->get());
    if (!started.ok()) {
      return fail(started.status());
    }
    coordinator = *std::move(started);
    meeting->coordinator = coordinator->address();
  }
  observe::StatusLine status;
  agent::OutputPump pump(spec, &status);
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  agent::Agent node({spec, spec.node_rank, meeting->coordinator, *token, std::string(kVersion), name, meeting->endpoint,
                     std::move(meeting->ports)},
                    **journal, pump, status);
  StatusOr<agent::JobEnd> end = node.run(signals);
  pump.finish();
  status.close();
  if (coordinator != nullptr) {
    coordinator->stop();
  }
  return end.ok() ? exit_with(*end) : fail(end.status());
}

}  // namespace keepstep::cli
