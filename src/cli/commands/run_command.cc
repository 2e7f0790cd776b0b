#include "cli/commands/run_command.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "agent/control/endpoint.h"
#include "agent/control/seat.h"
#include "agent/watch/preflight.h"
#include "base/log.h"
#include "cli/commands/print.h"
#include "cli/commands/requeue.h"
#include "cli/commands/token_handover.h"
#include "cli/commands/version.h"
#include "cli/options/run_option_table.h"
#include "cli/options/run_options.h"
#include "coordinator/coordinator.h"

namespace keepstep::cli {
namespace {

constexpr uint32_t kTerm = 1;  // one embedded coordinator for the job's whole life

void print_lines(const char* kind, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    print_line(stderr, absl::StrCat("keepstep: ", kind, ": ", line));
  }
}

int fail(const Status& status) {
  print_line(stderr, absl::StrCat("keepstep: error: ", status.message()));
  return 1;
}

brain::MembershipConfig membership_config(const agent::JobSpec& spec) {
  brain::MembershipConfig config;
  config.term = kTerm;
  config.nodes = spec.nnodes;
  config.world_size = spec.world_size();
  config.elastic = spec.elastic;
  config.max_nodes = spec.node_limit();
  config.ranks_per_node = spec.nproc_per_node;
  config.ranks_per_replica = spec.ranks_per_replica;
  config.spares = spec.spares;
  config.spare_nodes = spec.spare_nodes;
  config.ladder.restarts = spec.max_restarts;
  config.ladder.faults_per_node = spec.node_faults;
  config.ladder.node_window = std::chrono::milliseconds(static_cast<int64_t>(spec.fault_window_s * 1000));
  config.node_timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.node_timeout_s * 1000));
  config.interrupt_timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.interrupt_timeout_s * 1000));
  return config;
}

// Where the parts of the job meet, from this node's point of view.
struct Meeting {
  std::string listen;       // node 0: its coordinator's listening address
  std::string coordinator;  // other nodes: the coordinator's address
  brain::NodeEndpoint endpoint{brain::ipv4(127, 0, 0, 1), 0};
  agent::NodePorts ports;
  agent::TempFolder folder;                      // one node: for the coordinator's socket
  HeldName claim;                                // node 0's claim on the endpoint
  std::unique_ptr<agent::CoordinatorLink> seat;  // holds the number assigned to a node that had none
};

std::chrono::milliseconds join_timeout(const agent::JobSpec& spec) {
  return std::chrono::milliseconds(static_cast<int64_t>(spec.join_timeout_s * 1000));
}

// One node: a socket without a port, in a folder that no other user can enter, and ranks that meet in shared memory.
StatusOr<Meeting> meet_alone() {
  Meeting meeting;
  KEEPSTEP_ASSIGN_OR_RETURN(meeting.folder, agent::TempFolder::create());
  meeting.listen = absl::StrFormat("unix:%s/coordinator", std::filesystem::absolute(meeting.folder.path()).string());
  return meeting;
}

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

// If no launcher has a number, node 0 is the first one on the machine that the endpoint names. All other launchers
// connect to it.
StatusOr<SocketAddress> own_endpoint(const agent::JobSpec& spec, Meeting& meeting) {
  if (!spec.any_node_rank && spec.node_rank != 0) {
    return absl::NotFoundError("another node listens");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(
      SocketAddress own,
      agent::own_address(spec.endpoint_host, spec.endpoint_port,
                         "node 0 listens at --rdzv-endpoint (or --master-addr) and must run on that machine"));
  StatusOr<HeldName> claim = agent::claim_endpoint(own);
  if (spec.any_node_rank) {
    KEEPSTEP_RETURN_IF_ERROR(claim.status());
    if (!claim->held()) {
      return absl::NotFoundError("another launcher of this machine listens");
    }
  }
  if (claim.ok()) {  // --node-rank 0 is node 0 regardless
    meeting.claim = *std::move(claim);
  }
  return own;
}

// CANCELLED if a signal came; `got` is its number.
StatusOr<Meeting> meet_others(agent::JobSpec& spec, const JobToken& token, const sigset_t& signals, int& got) {
  Meeting meeting;
  std::string local_ip;
  const StatusOr<SocketAddress> own = own_endpoint(spec, meeting);
  if (own.ok() || (spec.node_rank == 0 && !spec.any_node_rank)) {
    KEEPSTEP_RETURN_IF_ERROR(own.status());
    spec.node_rank = 0;
    meeting.listen = own->text();
    local_ip = own->ip;
    if (is_loopback(own->ip) && !is_loopback(spec.endpoint_host) && spec.endpoint_host != "localhost") {
      print_lines("warning",
                  {absl::StrFormat("'%s' means %s on this machine, a loopback address (in /etc/hosts?), and no other "
                                   "machine reaches node 0 there; give --rdzv-endpoint this machine's address",
                                   spec.endpoint_host, own->ip)});
    }
  } else {
    KEEPSTEP_ASSIGN_OR_RETURN(const agent::Route route, agent::find_route(spec.endpoint_host, spec.endpoint_port,
                                                                          join_timeout(spec), signals, got));
    meeting.coordinator = route.coordinator.text();
    local_ip = route.local_ip;
    if (spec.any_node_rank) {
      KEEPSTEP_ASSIGN_OR_RETURN(
          meeting.seat, agent::take_seat(meeting.coordinator, host_name(), net::SharedKey::control(token, spec.run_id),
                                         join_timeout(spec), signals, got,
                                         [](const std::string& what) { print_lines("warning", {what}); }));
      spec.node_rank = meeting.seat->node();
    }
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

agent::SizeNews size_news(const coordinator::Coordinator& coordinator) {
  agent::SizeNews news{.nodes = coordinator.attending()};
  if (const auto said = coordinator.size_news()) {
    news.event = said->event;
    news.because = said->because;
    news.seconds_ago = std::chrono::duration<double>(std::chrono::steady_clock::now() - said->at).count();
  }
  return news;
}

// A signal arrived before there was anything to stop.
agent::JobEnd stopped_early(const agent::JobSpec& spec, int signal) {
  const std::string what = absl::StrFormat("stopped by %s", strsignal(signal));
  return agent::is_notice(spec, signal) ? agent::JobEnd{agent::kNoticeExitCode, what, "", true}
                                        : agent::JobEnd{128 + signal, what, "", false};
}

// The job's token: given, or random; under srun, node 0's, found where it left it.
StatusOr<JobToken> token_of(const agent::JobSpec& spec, const sigset_t& signals, int& got) {
  if (!spec.token.empty()) {
    return JobToken::parse(spec.token);
  }
  if (spec.token_file.empty() || spec.node_rank == 0) {
    return JobToken::random();
  }
  return await_token(spec.token_file, join_timeout(spec), signals, got);
}

// Blocked before any thread starts, so only the agent's signalfd sees them.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // Slurm sends a signal to every process of a job. It is meant for the launcher (where it is blocked, so the signalfd
  // still receives it). The processes it starts would die of it, but may still set a handler.
  signal(SIGUSR1, SIG_IGN);
  return signals;
}

// On node 0.
StatusOr<std::unique_ptr<coordinator::Coordinator>> start_coordinator(const agent::JobSpec& spec, const JobToken& token,
                                                                      const Meeting& meeting, agent::OutputPump& pump,
                                                                      observe::Journal& journal) {
  journal.write("job_started", {kTerm, 0}, "",
                {{"world_size", int64_t{spec.world_size()}},
                 {"spares", int64_t{spec.spares}},
                 {"script", spec.script},
                 {"version", std::string(kVersion)}});
  return coordinator::Coordinator::start({.membership = membership_config(spec),
                                          .listen = meeting.listen,
                                          .key = net::SharedKey::control(token, spec.run_id),
                                          .plain_data = spec.data_plane == "plain",
                                          .say = [&pump](const std::string& line) { pump.say(line); }},
                                         &journal);
}

int exit_with(const agent::JobSpec& spec, const agent::JobEnd& end) {
  if (const size_t first = end.message.find('\n'); end.exit_code == 0 && first != std::string::npos) {
    print_line(stderr, "keepstep: the job succeeded, but it continued after failures:" + end.message.substr(first));
  }
  if (end.exit_code != 0) {
    if (!end.traceback.empty()) {
      std::string_view text = end.traceback;
      text.remove_suffix(text.ends_with('\n') ? 1 : 0);
      print_line(stderr, text);
    }
    print_line(stderr, "keepstep: " + end.message);
  }
  if (end.on_notice && spec.requeue_on_notice && spec.node_rank == 0) {
    std::fprintf(stderr, "keepstep: Slurm is asked to requeue job %s\n", spec.slurm_job.c_str());
    if (const Status failed = requeue_slurm_job(spec.slurm_job); !failed.ok()) {
      std::fprintf(stderr, "keepstep: error: the job %s is not requeued: %s\n", spec.slurm_job.c_str(),
                   std::string(failed.message()).c_str());
    }
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
  unsetenv("KEEPSTEP_TOKEN");  // no process started from here needs it
  const sigset_t signals = block_signals();
  int got = 0;
  const StatusOr<JobToken> token = token_of(spec, signals, got);
  StatusOr<Meeting> meeting = !token.ok()            ? StatusOr<Meeting>(token.status())
                              : spec.several_nodes() ? meet_others(spec, *token, signals, got)
                                                     : meet_alone();
  if (!meeting.ok()) {
    return got != 0 ? exit_with(spec, stopped_early(spec, got)) : fail(meeting.status());
  }
  auto journal = observe::Journal::open(spec.journal_dir, spec.node_rank);
  if (!journal.ok()) {
    return fail(journal.status());
  }
  observe::StatusLine status;
  agent::OutputPump pump(spec, &status);
  LeftToken left_token;
  std::unique_ptr<coordinator::Coordinator> coordinator;
  if (spec.node_rank == 0) {
    auto started = start_coordinator(spec, *token, *meeting, pump, **journal);
    if (!started.ok()) {
      return fail(started.status());
    }
    coordinator = *std::move(started);
    meeting->coordinator = coordinator->address();
    if (spec.token.empty() && !spec.token_file.empty()) {
      StatusOr<LeftToken> leaving = leave_token(spec.token_file, *token);
      if (!leaving.ok()) {
        return fail(leaving.status());
      }
      left_token = *std::move(leaving);
    }
  }
  agent::Agent node(
      {spec, spec.node_rank, meeting->coordinator, *token, std::string(kVersion), host_name(), meeting->endpoint,
       std::move(meeting->ports), std::move(meeting->seat),
       [&left_token, &meeting] {
         left_token.remove();
         meeting->folder.remove_all();  // nobody else will connect, and a launcher that is killed leaves nothing
       },
       [&coordinator] { return size_news(*coordinator); },
       [&coordinator](agent::OnCommand commands) {
         if (coordinator != nullptr) {
           coordinator->take_commands(std::move(commands));
         }
       }},
      **journal, pump, status);
  StatusOr<agent::JobEnd> end = node.run(signals);
  if (coordinator != nullptr) {
    coordinator->stop();
  }
  pump.finish();
  status.close();
  return end.ok() ? exit_with(spec, *end) : fail(end.status());
}

}  // namespace keepstep::cli
