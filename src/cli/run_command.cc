#include "cli/run_command.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "agent/agent.h"
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
  config.world_size = spec.nproc_per_node;
  config.spares = spec.spares;
  config.ladder.restarts = spec.max_restarts;
  config.interrupt_timeout = std::chrono::milliseconds(static_cast<int64_t>(spec.interrupt_timeout_s * 1000));
  return config;
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
  // Blocked before any thread starts, so that only the agent's signalfd sees them.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  auto journal = observe::Journal::open(spec.journal_dir, 0);
  if (!journal.ok()) {
    return fail(journal.status());
  }
  (*journal)->write("job_started", {kTerm, 0}, "",
                    {{"world_size", int64_t{spec.nproc_per_node}},
                     {"spares", int64_t{spec.spares}},
                     {"script", spec.script},
                     {"version", std::string(kVersion)}});
  // On one machine the coordinator lives in this process: a socket without a port, which no other machine can reach.
  const std::string address = absl::StrFormat("unix-abstract:keepstep-%d-%s", getpid(), to_hex(random_nonce()));
  auto coordinator = coordinator::Coordinator::start({membership_config(spec), address, *token}, journal->get());
  if (!coordinator.ok()) {
    return fail(coordinator.status());
  }
  observe::StatusLine status;
  agent::OutputPump pump(spec, &status);
  // The only node: its ranks meet in shared memory, so that nobody needs a port of theirs.
  const brain::NodeEndpoint endpoint{brain::ipv4(127, 0, 0, 1), 0};
  agent::Agent node({spec, 0, (*coordinator)->address(), *token, endpoint}, **journal, pump, status);
  StatusOr<agent::JobEnd> end = node.run(signals);
  pump.finish();
  status.close();
  (*coordinator)->stop();
  if (!end.ok()) {
    return fail(end.status());
  }
  if (end->exit_code != 0) {
    if (!end->traceback.empty()) {
      std::fprintf(stderr, "%s%s", end->traceback.c_str(), end->traceback.ends_with('\n') ? "" : "\n");
    }
    std::fprintf(stderr, "keepstep: %s\n", end->message.c_str());
  }
  return end->exit_code;
}

}  // namespace keepstep::cli
