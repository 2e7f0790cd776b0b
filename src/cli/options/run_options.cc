#include "cli/options/run_options.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "agent/job/inject_spec.h"
#include "cli/options/elastic_options.h"
#include "cli/options/find_python.h"
#include "cli/options/given_token.h"
#include "cli/options/run_option_table.h"
#include "cli/options/run_values.h"
#include "cli/options/slurm.h"

namespace keepstep::cli {
namespace {

namespace fs = std::filesystem;

// One reading of the options: each method handles one subject, writes valid values to `spec_` and errors to `mistakes`.
class OptionsParser {
 public:
  OptionsParser(RunTokens tokens, const Surroundings& around) : tokens_(std::move(tokens)), around_(around) {
    mistakes_ = tokens_.mistakes;
    warnings_ = tokens_.warnings;
  }

  StatusOr<RunRequest> read() {
    slurm();
    world();
    kinds();
    script();
    output();
    recovery();
    detection();
    log_rules();
    injections();
    addresses();
    token();
    if (!mistakes_.empty()) {
      return absl::InvalidArgumentError(absl::StrJoin(mistakes_, "\n"));
    }
    return RunRequest{.action = RunRequest::Action::kRun, .spec = spec_, .warnings = warnings_};
  }

 private:
  void world();
  void slurm();
  void nodes();
  void endpoint(std::optional<std::pair<std::string, uint16_t>> given, std::optional<uint16_t> master_port);
  void kinds();
  void script();
  void script_file();
  void output();
  void recovery();
  void detection();
  void injections();
  void log_rules();
  void addresses();
  void token();
  void token_file();
  std::optional<uint32_t> ranks_of(const GivenValue& given);

  void mistake(const GivenValue& given, const std::string& what_to_do) {
    mistakes_.push_back(absl::StrFormat("%s is '%s'; %s", given.where, given.value, what_to_do));
  }
  // Parses the option's value with `parse` into `into`, if it was given.
  template <typename Into, typename Parse>
  void take(const char* name, Into& into, Parse parse, const std::string& what_to_do) {
    if (const auto given = tokens_.last(name)) {
      if (auto value = parse(given->value)) {
        into = *std::move(value);  // NOLINT(bugprone-optional-value-conversion): Into may be an optional itself
      } else {
        mistake(*given, what_to_do);
      }
    }
  }
  void take_text(const char* name, std::string& into) {
    if (const auto given = tokens_.last(name)) {
      into = given->value;
    }
  }

  RunTokens tokens_;
  const Surroundings& around_;
  agent::JobSpec spec_;
  std::vector<std::string> mistakes_;
  std::vector<std::string> warnings_;
  std::optional<SlurmStep> slurm_;  // if srun started this process and its nodes are the job's
};

std::optional<uint32_t> OptionsParser::ranks_of(const GivenValue& given) {
  const std::string& value = given.value;
  if (value == "gpu" && around_.gpus == 0) {
    mistake(given, "no NVIDIA GPU is visible here; give a number, auto or cpu");
    return std::nullopt;
  }
  uint32_t ranks = 0;
  if (value == "gpu" || (value == "auto" && around_.gpus > 0)) {
    ranks = around_.gpus;
  } else if (value == "cpu" || value == "auto") {
    ranks = around_.cpus;
  } else if (const auto number = integer_in<uint32_t>(value, 1, kMaxRanksPerNode)) {
    return number;
  } else {
    mistake(given, absl::StrFormat("give a number from 1 to %d, auto, cpu or gpu", kMaxRanksPerNode));
    return std::nullopt;
  }
  if (ranks > kMaxRanksPerNode) {
    mistake(given, absl::StrFormat("that means %d ranks here and at most %d are possible on one machine; give a number",
                                   ranks, kMaxRanksPerNode));
    return std::nullopt;
  }
  return ranks;
}

void OptionsParser::world() {
  if (const auto given = tokens_.last("nproc-per-node")) {
    // After a mistake, check the other options against the largest world, so one mistake is listed only once.
    spec_.nproc_per_node = ranks_of(*given).value_or(kMaxRanksPerNode);
  }
  take(
      "spares", spec_.spares, [](const auto& text) { return integer_in<uint32_t>(text, 0, kMaxSpares); },
      absl::StrFormat("give a number from 0 to %d", kMaxSpares));
  nodes();
  take_text("role", spec_.role);
}

// Nodes named by the options take precedence over those from Slurm.
void OptionsParser::slurm() {
  spec_.slurm_job = around_.environ("SLURM_JOB_ID").value_or("");
  if (tokens_.has("nnodes") || tokens_.has("node-rank") || tokens_.has("standalone")) {
    return;
  }
  StatusOr<std::optional<SlurmStep>> step = slurm_step(around_.environ);
  if (!step.ok()) {
    mistakes_.push_back(std::string(step.status().message()));
    return;
  }
  slurm_ = *std::move(step);
  if (slurm_ && slurm_->tasks > slurm_->nodes) {
    mistakes_.push_back(absl::StrFormat(
        "srun started %d tasks on %d node(s), and one keepstep on each node starts the ranks itself: give srun "
        "--ntasks-per-node=1 and keepstep --nproc-per-node (or --standalone, if each task is a job of its own)",
        slurm_->tasks, slurm_->nodes));
    slurm_.reset();
  }
}

void OptionsParser::nodes() {
  if (slurm_) {
    spec_.nnodes = slurm_->nodes;  // minus spare nodes, below
    spec_.node_rank = slurm_->node;
  }
  NodeRange range{spec_.nnodes, spec_.nnodes};
  take("nnodes", range, number_of_nodes,
       absl::StrFormat("give a number from 1 to %d, or MIN:MAX with two such numbers, MIN not above MAX", kMaxNodes));
  spec_.nnodes = range.least;
  take(
      "spare-nodes", spec_.spare_nodes, [](const auto& text) { return integer_in<uint32_t>(text, 0, kMaxNodes); },
      absl::StrFormat("give a number from 0 to %d", kMaxNodes));
  if (slurm_ && spec_.spare_nodes >= slurm_->nodes) {
    mistakes_.push_back(absl::StrFormat("--spare-nodes is '%d', and srun started %d node(s): none would train",
                                        spec_.spare_nodes, slurm_->nodes));
  } else if (slurm_) {
    spec_.nnodes -= spec_.spare_nodes;
    range.most = spec_.nnodes;
  }
  spec_.max_nodes = range.most;
  read_elastic_options(tokens_, spec_, mistakes_);
  take(
      "join-timeout", spec_.join_timeout_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  const uint32_t last = spec_.node_limit() + spec_.spare_nodes - 1;
  take(
      "node-rank", spec_.node_rank, [&](const auto& text) { return integer_in<uint32_t>(text, 0, last); },
      last == 0 ? "the job has one node, whose rank is 0; give --nnodes for several"
                : absl::StrFormat("give a number from 0 to %d: the job has %d nodes and %d spare ones", last,
                                  spec_.node_limit(), spec_.spare_nodes));
  if (!spec_.several_nodes()) {
    return;
  }
  spec_.any_node_rank = !tokens_.has("node-rank") && !slurm_;
  if (spec_.nproc_per_node > kMaxRanksOfSeveral) {
    mistakes_.push_back(absl::StrFormat("--nproc-per-node is '%d'; with several nodes at most %d", spec_.nproc_per_node,
                                        kMaxRanksOfSeveral));
  }
}

// How workers are started.
void OptionsParser::kinds() {
  spec_.module = tokens_.has("module");
  spec_.no_python = tokens_.has("no-python") && !tokens_.has("run-path");
  if (spec_.no_python && spec_.module) {
    mistakes_.push_back("--no-python and --module: a module needs Python; leave one of them out");
  }
  if (const auto given = tokens_.last("start-method")) {
    const std::string& value = given->value;
    spec_.start_by_exec = value == "exec";
    if (value != "exec" && value != "fork" && value != "spawn" && value != "forkserver") {
      mistake(*given, "give spawn, fork, forkserver or exec");
    }
  }
  spec_.preload = !tokens_.has("no-preload");
  take(
      "seed", spec_.seed,
      [](const auto& text) { return integer_in<uint64_t>(text, 0, std::numeric_limits<uint64_t>::max()); },
      "give a whole number from 0 to 18446744073709551615");
  if (around_.python.ok()) {
    spec_.python = *around_.python;  // a program may be a Python script, and may save checkpoints
  } else if (!spec_.no_python) {
    mistakes_.push_back(std::string(around_.python.status().message()));
  }
}

void OptionsParser::script() {
  if (!tokens_.script || tokens_.script->empty()) {
    if (!tokens_.script_in_doubt) {
      mistakes_.push_back("no script: name one after the options, as in `keepstep run --nproc-per-node 4 train.py`");
    }
    return;
  }
  spec_.script = *tokens_.script;
  spec_.script_args = tokens_.script_args;
  if (!spec_.module && !tokens_.script_in_doubt) {
    script_file();
  }
}

void OptionsParser::script_file() {
  if (spec_.no_python) {
    if (const std::string program = find_program(spec_.script, around_.path); !program.empty()) {
      spec_.script = program;
    } else {
      mistakes_.push_back(absl::StrFormat(
          "the program '%s' is no file that can be executed, and none in PATH (--no-python runs programs)",
          spec_.script));
    }
    return;
  }
  std::error_code error;
  const std::string full = fs::absolute(spec_.script, error).lexically_normal().string();
  if (!fs::exists(spec_.script, error)) {
    mistakes_.push_back(absl::StrFormat(
        "the script '%s' does not exist; check its path, or give -m if '%s' is a module", full, spec_.script));
  } else if (fs::is_directory(spec_.script, error) && !fs::exists(fs::path(spec_.script) / "__main__.py", error)) {
    mistakes_.push_back(absl::StrFormat("the script '%s' is a directory without a __main__.py", full));
  } else if (access(spec_.script.c_str(), R_OK) != 0) {
    mistakes_.push_back(absl::StrFormat("the script '%s' cannot be read; check its permissions", full));
  }
}

void OptionsParser::output() {
  const uint32_t ranks = spec_.nproc_per_node;
  const std::string help = absl::StrFormat(
      "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:STREAMS,... with ranks from 0 to %d", ranks - 1);
  take("redirects", spec_.redirects, [&](const auto& text) { return streams(text, ranks); }, help);
  take("tee", spec_.tee, [&](const auto& text) { return streams(text, ranks); }, help);
  take(
      "local-ranks-filter", spec_.local_ranks_filter, [&](const auto& text) { return rank_list(text, ranks); },
      absl::StrFormat("give ranks from 0 to %d, separated by commas", ranks - 1));
  take_text("log-dir", spec_.log_dir);
  take_text("journal", spec_.journal_dir);
  const auto asks = [](const agent::StreamsByRank& streams) {
    return streams.all != 0 ||
           std::any_of(streams.by_rank.begin(), streams.by_rank.end(), [](const auto& s) { return s.second != 0; });
  };
  if (spec_.log_dir.empty() && (asks(spec_.redirects) || asks(spec_.tee))) {
    spec_.log_dir = kDefaultLogDir;
    warnings_.push_back(absl::StrFormat("no --log-dir for --redirects or --tee: files go to '%s'",
                                        fs::absolute(spec_.log_dir).string()));
  }
  std::error_code error;
  for (const auto& [option, dir] : {std::pair{"--log-dir", spec_.log_dir}, std::pair{"--journal", spec_.journal_dir}}) {
    if (!dir.empty() && dir != "/dev/null" && fs::exists(dir, error) && !fs::is_directory(dir, error)) {
      mistakes_.push_back(absl::StrFormat("%s is '%s', which is a file; give a directory", option, dir));
    }
  }
}

void OptionsParser::recovery() {
  take(
      "max-restarts", spec_.max_restarts,
      [](const auto& text) { return integer_in<int>(text, 0, std::numeric_limits<int>::max()); },
      "give a number from 0 up");
  take(
      "node-faults", spec_.node_faults, [](const auto& text) { return integer_in<int>(text, 0, kMaxNodeFaults); },
      absl::StrFormat("give a number from 0 to %d", kMaxNodeFaults));
  take(
      "fault-window", spec_.fault_window_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  take(
      "node-timeout", spec_.node_timeout_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  take(
      "interrupt-timeout", spec_.interrupt_timeout_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  take(
      "monitor-interval", spec_.monitor_interval_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  spec_.check_all_steps = tokens_.has("check");
  spec_.allow_inject = tokens_.has("allow-inject");
  if (const auto plane = tokens_.last("data-plane")) {
    spec_.data_plane = plane->value;
    if (plane->value != "tls" && plane->value != "plain") {
      mistake(*plane, "give tls or plain");
    }
  }
  if (const auto action = tokens_.last("on-notice")) {
    spec_.requeue_on_notice = action->value == "requeue";
    if (action->value != "stop" && action->value != "requeue") {
      mistake(*action, "give stop or requeue");
    } else if (spec_.requeue_on_notice && spec_.slurm_job.empty()) {
      mistake(*action, "this is no job of Slurm (SLURM_JOB_ID is not set), so nothing can be requeued; leave it out");
    }
  }
}

void OptionsParser::detection() {
  take(
      "hang-timeout", spec_.hang, [](const auto& text) { return hang_timeout(text, kMaxSeconds); },
      absl::StrFormat("give auto, off, or seconds above 0 and at most %g", kMaxSeconds));
  if (const auto digests = tokens_.last("digests")) {
    spec_.digests = digests->value;
    if (digests->value != "auto" && digests->value != "on" && digests->value != "off") {
      mistake(*digests, "give auto, on or off");
    }
  }
  take(
      "digest-every", spec_.digest_every,
      [](const auto& text) { return integer_in<uint32_t>(text, 0, std::numeric_limits<int32_t>::max()); },
      "give a number of steps; 0: never");
  if (const auto health = tokens_.last("health-check")) {
    spec_.health_check = health->value != "off";
    if (health->value != "on" && health->value != "off") {
      mistake(*health, "give on or off");
    }
  }
  take(
      "health-interval", spec_.health_interval_s, [](const auto& text) { return seconds_up_to(text, kMaxSeconds); },
      absl::StrFormat("give seconds above 0 and at most %g", kMaxSeconds));
  if (const auto limit = tokens_.last("clock-limit")) {
    const auto seconds = seconds_up_to(limit->value, kMaxSeconds);
    spec_.clock_limit_s = seconds.value_or(0);
    if (!seconds.has_value() && limit->value != "off") {
      mistake(*limit, absl::StrFormat("give off, or seconds above 0 and at most %g", kMaxSeconds));
    }
  }
  if (const auto apart = tokens_.last("clocks-apart")) {
    spec_.refuse_clocks_apart = apart->value == "refuse";
    if (apart->value != "warn" && apart->value != "refuse") {
      mistake(*apart, "give warn or refuse");
    }
  }
}

void OptionsParser::injections() {
  const auto given = tokens_.values.find("inject");
  if (given == tokens_.values.end()) {
    return;
  }
  for (const GivenValue& one : given->second) {
    const auto fault = agent::parse_inject(one.value);
    if (!fault.ok()) {
      mistake(one, std::string(fault.status().message()));
    } else if (fault->rank && *fault->rank >= spec_.rank_limit()) {
      mistake(one, absl::StrFormat("there is no rank %d; ranks are 0 to %d", *fault->rank, spec_.rank_limit() - 1));
    } else if (fault->on_spare && spec_.spares == 0) {
      mistake(one, "there is no spare; give --spares");
    } else if (spec_.no_python && !agent::for_programs(fault->kind)) {
      mistake(one, absl::StrFormat("with --no-python only %s can be injected, by a program that attaches "
                                   "(include/keepstep/trainer.h)",
                                   agent::program_faults()));
    } else {
      spec_.inject.push_back(one.value);
    }
  }
}

void OptionsParser::log_rules() {
  const auto given = tokens_.last("log-rules");
  if (!given) {
    return;
  }
  std::ifstream in(given->value);
  if (!in || fs::is_directory(given->value)) {
    mistake(*given, "that file cannot be read; give a YAML file with rules (docs/reference/log_rules.md)");
    return;
  }
  std::string text(agent::kMaxLogRulesBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  agent::ParsedLogRules parsed = agent::parse_log_rules(text, given->value, spec_.rank_limit());
  mistakes_.insert(mistakes_.end(), parsed.mistakes.begin(), parsed.mistakes.end());
  spec_.log_rules = std::move(parsed.rules);
}

void OptionsParser::addresses() {
  const bool standalone = tokens_.has("standalone");
  take_text("rdzv-id", spec_.run_id);
  if (spec_.run_id.empty() || spec_.run_id.find('/') != std::string::npos || spec_.run_id == "." ||
      spec_.run_id == "..") {
    mistakes_.push_back(absl::StrFormat(
        "--rdzv-id is '%s'; it names a folder of log files: give a name without a slash", spec_.run_id));
  }
  if (const auto given = tokens_.last("rdzv-backend");
      given && given->value != "static" && given->value != "c10d" && !standalone) {
    mistake(*given, "give static or c10d, or leave it out");
  }
  std::optional<std::pair<std::string, uint16_t>> endpoint;
  take("rdzv-endpoint", endpoint, host_and_port, "give HOST or HOST:PORT with a port from 0 to 65535");
  std::optional<uint16_t> port;
  take(
      "master-port", port, [](const auto& text) { return integer_in<uint16_t>(text, 0, 65535); },
      "give a port from 0 (a free one) to 65535");
  take_text("local-addr", spec_.local_addr);
  if (spec_.several_nodes()) {
    if (standalone) {
      mistakes_.push_back("--standalone means one node; leave it out, or --nnodes and --spare-nodes");
    } else {
      this->endpoint(endpoint, port);
    }
    return;
  }
  if (standalone) {
    return;  // the spec's defaults
  }
  if (endpoint) {
    spec_.master_addr = endpoint->first.empty() ? spec_.master_addr : endpoint->first;
    spec_.master_port = endpoint->second;
  }
  take_text("local-addr", spec_.master_addr);
  take_text("master-addr", spec_.master_addr);
  spec_.master_port = port.value_or(spec_.master_port);
}

// With several nodes: where node 0 listens for the others. MASTER_ADDR and MASTER_PORT are a different place, on the
// node of rank 0, chosen by the agents unless given in addition to an endpoint.
void OptionsParser::endpoint(std::optional<std::pair<std::string, uint16_t>> given,
                             std::optional<uint16_t> master_port) {
  const auto master_addr = tokens_.last("master-addr");
  spec_.master_addr.clear();
  if (given) {
    spec_.endpoint_host = given->first;
    spec_.endpoint_port = given->second;
    if (tokens_.last("rdzv-endpoint")->value.ends_with(":0")) {
      mistake(*tokens_.last("rdzv-endpoint"), "all nodes must know the port: give one from 1 to 65535");
    } else if (spec_.endpoint_port == 0) {
      spec_.endpoint_port = kEndpointPort;
    }
    take_text("master-addr", spec_.master_addr);
    spec_.master_port = master_port == spec_.endpoint_port ? 0 : master_port.value_or(0);
  } else if (master_addr) {
    spec_.endpoint_host = master_addr->value;
    spec_.endpoint_port = master_port.value_or(kMasterPort);
    if (spec_.endpoint_port == 0) {
      mistake(*tokens_.last("master-port"), "all nodes must know the port: give one from 1 to 65535");
    }
  } else if (slurm_) {
    spec_.endpoint_host = slurm_->first_host;
    spec_.endpoint_port = slurm_->port();
    return;
  }
  if (spec_.endpoint_host.empty() && (given || master_addr || !tokens_.has("rdzv-endpoint"))) {
    mistakes_.push_back(
        "no --rdzv-endpoint: several nodes need to know where node 0 listens; give HOST:PORT, the same on all nodes");
  }
}

void OptionsParser::token() {
  const GivenToken given = given_token(tokens_.last("token-file"), around_.environ);
  mistakes_.insert(mistakes_.end(), given.mistakes.begin(), given.mistakes.end());
  if (given.token) {
    spec_.token = given.token->secret();
  } else if (given.mistakes.empty()) {  // otherwise a random one
    if (spec_.several_nodes() && slurm_) {
      token_file();
    } else if (spec_.several_nodes()) {
      mistakes_.push_back(
          "no job token: without one anybody who reaches the endpoint could join. Make one with "
          "`(umask 077; openssl rand -hex 32 > job.token)`, copy it to every node and give --token-file job.token on "
          "all (or KEEPSTEP_TOKEN)");
    }
  }
}

// Under srun, node 0 makes the token and the other nodes find it.
void OptionsParser::token_file() {
  std::string folder;
  take_text("token-dir", folder);
  if (folder.empty()) {
    const std::string home = around_.environ("HOME").value_or("");
    if (home.empty()) {
      mistakes_.push_back(
          "no job token, and HOME is not set: give --token-dir with a folder that all nodes share, or start with "
          "KEEPSTEP_TOKEN=$(openssl rand -hex 32) srun keepstep run ...");
      return;
    }
    folder = home + "/.keepstep";
  }
  spec_.token_file = (fs::absolute(folder).lexically_normal() / ("token." + slurm_->name())).string();
}

uint32_t visible_gpus() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::vector<std::string> ids = absl::StrSplit(visible, ',', absl::SkipEmpty());
    return ids.empty() || ids.front() == "-1" ? 0 : static_cast<uint32_t>(ids.size());
  }
  uint32_t count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    count += name.starts_with("nvidia") && integer_in<int>(name.substr(6), 0, 1000) ? 1 : 0;
  }
  return count;
}

}  // namespace

Surroundings current_surroundings() {
  Surroundings around;
  around.environ = environment();
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  around.cpus = sched_getaffinity(0, sizeof cpus, &cpus) == 0
                    ? static_cast<uint32_t>(CPU_COUNT(&cpus))
                    : static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  around.gpus = visible_gpus();
  const PythonSearch search = python_search();
  around.path = search.path;
  around.python = find_python(search);
  return around;
}

StatusOr<RunRequest> parse_run_options(const std::vector<std::string>& args, const Surroundings& surroundings) {
  RunTokens tokens = tokenize_run(args, surroundings.environ);
  if (tokens.help || tokens.help_markdown) {
    return RunRequest{.action = tokens.help ? RunRequest::Action::kHelp : RunRequest::Action::kHelpMarkdown};
  }
  return OptionsParser(std::move(tokens), surroundings).read();
}

}  // namespace keepstep::cli
