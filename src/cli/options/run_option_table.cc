#include "cli/options/run_option_table.h"

#include <cctype>
#include <chrono>

#include "absl/strings/str_format.h"
#include "agent/job/inject_spec.h"
#include "brain/elastic/elastic_policy.h"

namespace keepstep::cli {
namespace {

using Support = RunOption::Support;

std::vector<RunOption> world_options() {
  const std::string group = "World";
  return {
      {group, "nproc-per-node", 0, "N|auto|cpu|gpu",
       "Ranks on each node; the same number on all. auto: one per GPU where there are any, else one per CPU this "
       "process may use; cpu, gpu: one per CPU, one per GPU.",
       "1", absl::StrFormat("1 to %d; with several nodes to %d", kMaxRanksPerNode, kMaxRanksOfSeveral), true},
      {group, "spares", 0, "N",
       "Standby workers on each node, with the script imported and the model built. One of them replaces a rank that "
       "dies.",
       "0", absl::StrFormat("0 to %d; with --no-python only for programs that attach", kMaxSpares)},
      {group, "nnodes", 0, "N|MIN:MAX",
       "Number of nodes, each with --nproc-per-node ranks. Start one `keepstep run` on every node, with the same "
       "options except --node-rank. MIN:MAX makes the job elastic: it starts with at least MIN nodes, grows as nodes "
       "join, and shrinks as nodes leave (see Elastic jobs below).",
       "1; under srun the step's nodes, less --spare-nodes",
       absl::StrFormat("1 to %d; MIN at most MAX; the job is not elastic if they are equal", kMaxNodes), true},
      {group, "node-rank", 0, "N",
       "This node's number. Node 0 runs the coordinator: if its launcher dies, the job ends. --rdzv-endpoint names its "
       "address. Set this on all nodes or on none.",
       "the node that can listen at the endpoint is node 0, the others are numbered as they join; under srun Slurm's "
       "number",
       "below --nnodes; spare nodes take the numbers after that", true},
      {group, "spare-nodes", 0, "N",
       "Standby nodes beyond --nnodes. One of them takes the place of a node that is lost.", "0",
       absl::StrFormat("0 to %d; 0 in an elastic job, where unused nodes stand by anyway", kMaxNodes)},
      {group, "join-timeout", 0, "SECONDS", "How long a node waits for the coordinator and for the other nodes.", "600",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "role", 0, "NAME", "Name of the ranks' role: sets ROLE_NAME and prefixes teed lines.", "default", "",
       true},
  };
}

std::vector<RunOption> elastic_options() {
  const std::string group = "Elastic jobs (any of these options makes a job elastic, even on one node)";
  const std::string seconds =
      absl::StrFormat("0 to %.0f", std::chrono::duration<double>(brain::ElasticConfig::kMaxTime).count());
  const std::string replicas = absl::StrFormat("1 to %d", brain::ElasticConfig::kMaxReplicas);
  const brain::ElasticConfig standard;
  const auto text = [](brain::Time time) { return absl::StrFormat("%g", std::chrono::duration<double>(time).count()); };
  return {
      {group, "ranks-per-replica", 0, "R",
       "Ranks that join and leave together: one replica, the unit of the options below. Less than --nproc-per-node: "
       "several replicas per node. More: a replica spans several whole nodes.",
       "--nproc-per-node: a replica is a node", "a divisor or a multiple of --nproc-per-node"},
      {group, "min-replicas", 0, "N", "The job never runs with fewer replicas (minReplicas).",
       "as many as MIN nodes of --nnodes hold, or the smallest of --replica-discrete-values", replicas},
      {group, "max-replicas", 0, "N", "The job never runs with more replicas (maxReplicas).",
       "as many as MAX nodes of --nnodes hold, or the largest of --replica-discrete-values",
       replicas + "; at most as many as the nodes hold"},
      {group, "replica-increment-step", 0, "N",
       "Step between allowed sizes, counted from --min-replicas (replicaIncrementStep).",
       std::to_string(standard.increment_step), "must lead to --max-replicas"},
      {group, "replica-discrete-values", 0, "N,...", "The only sizes allowed (replicaDiscreteValues).",
       "the sizes that --replica-increment-step gives",
       "between --min-replicas and --max-replicas; not with --replica-increment-step"},
      {group, "scaling-timeout", 0, "SECONDS",
       "How long new nodes must be present without interruption before the job grows onto them "
       "(scalingTimeoutInSeconds).",
       text(standard.scaling_timeout), seconds},
      {group, "graceful-shutdown-timeout", 0, "SECONDS",
       "How long a node may take to leave after SIGTERM. It finishes its step and hands over its state. After this "
       "time it exits anyway and counts as lost (gracefulShutdownTimeoutInSeconds).",
       text(standard.graceful_shutdown_timeout), seconds},
      {group, "faulty-scale-down-timeout", 0, "SECONDS",
       "How long the job waits for a lost node's replacement before it continues with fewer replicas "
       "(faultyScaleDownTimeoutInSeconds).",
       text(standard.faulty_scale_down_timeout), seconds},
      {group, "scale-up-snooze-time", 0, "SECONDS",
       "How long the job does not grow after a node left or was lost (scaleUpSnoozeTimeInSeconds).",
       text(standard.scale_up_snooze), seconds},
      {group, "min-change-interval", 0, "SECONDS",
       "Shortest time between a change of size and the next voluntary one (minChangeIntervalInSeconds).",
       text(standard.min_between_changes), seconds},
      {group, "elastic-backoff", 0, "FACTOR",
       "Factor on --min-change-interval each time growth did not last (backoffFactor).",
       absl::StrFormat("%g", standard.backoff_factor), "1 (no backoff) to 100"},
      {group, "elastic-max-backoff", 0, "SECONDS",
       "Longest interval that --elastic-backoff may lead to (maxBackoffInSeconds).", text(standard.max_backoff),
       seconds + ", at least --min-change-interval"},
      {group, "elastic-policy", 0, "FILE",
       "YAML file with these settings, under the names in parentheses. Options on the command line override it. Node "
       "0's settings apply. `keepstep scale` changes them while the job runs. All errors in it are listed before "
       "anything starts. See elastic.md.",
       "none", ""},
  };
}

std::vector<RunOption> script_options() {
  const std::string group = "What to run";
  return {
      {group, "module", 'm', "", "SCRIPT is a Python module, run as with `python -m`.", "", "", true},
      {group, "no-python", 0, "",
       "SCRIPT is a program, not a Python script: a path, or a name in PATH. A fault restarts all ranks, unless the "
       "program attaches through include/keepstep/trainer.h; then its ranks are replaced like those of a script. Not "
       "with --module.",
       "", "", true},
      {group, "run-path", 0, "",
       "Run SCRIPT in an interpreter that is already running; keepstep always does. Overrides --no-python.", "", "",
       true},
      {group, "start-method", 0, "spawn|fork|forkserver|exec",
       "How worker processes start. torchrun's three values all fork from a zygote, a process that has imported torch. "
       "exec starts a new interpreter for each (slower; needed if imports start threads).",
       "fork", "one of spawn, fork, forkserver, exec", true},
      {group, "no-preload", 0, "", "The zygote imports torch only, and not what the first worker imported.", "", ""},
      {group, "seed", 0, "N", "Seed for the job's random numbers, the same on every rank.", "0",
       "0 to 18446744073709551615"},
  };
}

std::vector<RunOption> output_options() {
  const std::string group = "Output";
  return {
      {group, "log-dir", 0, "DIR",
       "Write each rank's output to files, per generation: DIR/RUN_ID/attempt_GENERATION/RANK/stdout.log and "
       "stderr.log. A spare writes to DIR/RUN_ID/spares/WORKER until it has a rank. Existing files are appended to. "
       "/dev/null: no files.",
       absl::StrFormat("none; %s if --redirects or --tee need files", kDefaultLogDir), "", true},
      {group, "redirects", 'r', "STREAMS",
       "Streams to write to files only. 0: none, 1: stdout, 2: stderr, 3: both. Or per local rank: 0:3,1:2.", "0",
       "0 to 3, or RANK:STREAMS,... with ranks below --nproc-per-node", true},
      {group, "tee", 't', "STREAMS",
       "Streams to write to files and to the console, there with the prefix [ROLERANK]:. Values as for --redirects.",
       "0", "0 to 3, or RANK:STREAMS,... with ranks below --nproc-per-node", true},
      {group, "local-ranks-filter", 0, "RANK,...",
       "Show only these ranks' output on the console. Files get everything.", "all", "ranks below --nproc-per-node",
       true},
      {group, "journal", 0, "DIR",
       "Write the journal here: DIR/journal.jsonl (every decision and its reason) and DIR/metrics.jsonl (every "
       "committed step). `keepstep report DIR` reads them. With several nodes, node N writes its own view to "
       "DIR/journal.nodeN.jsonl and DIR/metrics.nodeN.jsonl.",
       "none", "a folder without the journal of another run"},
  };
}

std::vector<RunOption> recovery_options() {
  const std::string group = "Recovery";
  return {
      {group, "max-restarts", 0, "N",
       "How many times the job may restart all its ranks when replacing a process does not help. They restart with the "
       "state that some process still holds, otherwise from the first step. (torchrun's default is 0.)",
       "3", "0 or more", true},
      {group, "node-faults", 0, "N",
       "If this many rank processes on a node die (or are caught with flipped bits) within --fault-window, its ranks "
       "move to a spare node (--spare-nodes). With no spare node, and on rank 0's node, processes are still replaced "
       "in place. 0: replace a node only if it is lost.",
       "3", absl::StrFormat("0 to %d", kMaxNodeFaults)},
      {group, "fault-window", 0, "SECONDS", "How long a fault counts for --node-faults.", "600",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "node-timeout", 0, "SECONDS",
       "How long the job waits for a node to take over a lost node's ranks if there is no spare node. Then it ends. An "
       "elastic job first continues without them, if it may.",
       "60", absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "interrupt-timeout", 0, "SECONDS",
       "Kill and replace a rank that does not leave an interrupted step within this time.", "60",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "hang-timeout", 0, "auto|SECONDS|off",
       "Kill and replace a rank as hung if the others have waited this long for it and nobody makes progress. auto: "
       "half a second plus twice the time that a step takes, or that the others needed for the same work. A stopped "
       "process (SIGSTOP) is replaced at once. Sections inside run.slow are exempt.",
       "auto", absl::StrFormat("auto, off, or seconds above 0 and at most %g", kMaxSeconds)},
      {group, "check", 0, "",
       "Check every step, not only the first few, for protected tensors that change outside the commit, and for "
       "modules and optimizers that are not protected. Slows training down.",
       "", ""},
      {group, "digests", 0, "auto|on|off",
       "Compare digests of the reduced gradients across ranks before each vote. If they differ, the step is redone and "
       "the rank in the minority is replaced. auto: only if a wrapper makes gradients equal on all ranks. on: always. "
       "See docs/design/corruption.md.",
       "auto", "auto, on or off"},
      {group, "digest-every", 0, "STEPS",
       "Compare protected parameters and optimizers in the same way every STEPS steps, wherever gradients are "
       "compared. Steps since the last comparison are not undone.",
       "50", "0: never"},
      {group, "health-check", 0, "on|off",
       "Check each worker before it gets a rank: a computation with a known result, memory, sums and messages to "
       "itself, the driver's view of its GPUs, and the script's own `health_check=`. Also check nodes now and then: "
       "memory, disk, clock, GPUs. A worker that fails is replaced.",
       "on", "on or off"},
      {group, "health-interval", 0, "SECONDS", "Time between two checks of a node.", "60",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "clock-limit", 0, "SECONDS|off",
       "How far a node's wall clock may differ from node 0's. Compared when a node joins and every --health-interval. "
       "Node 0 reports which clock is off, and by how much.",
       "1", absl::StrFormat("off, or seconds above 0 and at most %g; the same on all nodes", kMaxSeconds)},
      {group, "clocks-apart", 0, "warn|refuse",
       "What to do with a joining node whose clock is off by more than --clock-limit: warn, or refuse it.", "warn",
       "warn or refuse; the same on all nodes"},
      {group, "on-notice", 0, "stop|requeue",
       "On SIGUSR1 (under Slurm also SIGTERM) the ranks finish their step and call the script's run.on(\"notice\", "
       "...), and the job ends with exit code 75. requeue: also call `scontrol requeue` for the Slurm job, unless that "
       "job is ending anyway.",
       "stop", "stop or requeue; see slurm.md"},
      {group, "log-rules", 0, "FILE",
       "YAML file with rules for what ranks print: a line that must never appear, must appear in time, or must hold a "
       "number within limits. A broken rule is journalled, replaces the rank, or stops the job. All errors in it are "
       "listed before anything starts. See log_rules.md.",
       "none", ""},
      {group, "inject", 0, "FAULT",
       absl::StrFormat(
           "Inject a fault: KIND:rank=R|any,step=K,phase=P[,on=spare]. KIND: %s. P: %s. Example: "
           "kill:rank=2,step=20,phase=backward. Other keys, and what each kind does: docs/reference/inject.md.",
           agent::inject_kinds(), agent::inject_phases()),
       "none", "R below the number of ranks, K from 1; with --no-python only for programs that attach", false, true},
      {group, "allow-inject", 0, "",
       "Let `keepstep inject` cause faults on this node while the job runs. Refused otherwise.", "", ""},
  };
}

std::vector<RunOption> address_options() {
  const std::string group = "Addresses";
  return {
      {group, "standalone", 0, "",
       "One node, free ports; --rdzv-endpoint, --master-addr and --master-port are ignored.", "", "", true},
      {group, "master-addr", 0, "HOST",
       "MASTER_ADDR of the ranks. With several nodes and no --rdzv-endpoint: the address of node 0.",
       "127.0.0.1; with several nodes node 0's", "an address of this node, or of node 0", true},
      {group, "master-port", 0, "PORT",
       "MASTER_PORT of the ranks. With several nodes and no --rdzv-endpoint: where node 0 listens. (torchrun's default "
       "is 29500.)",
       absl::StrFormat("a free one; %d with several nodes and --master-addr", kMasterPort), "0 (a free one) to 65535",
       true},
      {group, "local-addr", 0, "HOST",
       "This node's address, where other nodes reach its ranks. On one node: MASTER_ADDR if --master-addr is not "
       "given.",
       "the address on the route to the endpoint", "an address of this node", true},
      {group, "rdzv-id", 0, "ID",
       "Name of the job, the same on all nodes. Sets TORCHELASTIC_RUN_ID, names the folder of log files, and is part "
       "of the job's key.",
       "none", "a name without a slash", true},
      {group, "rdzv-backend", 0, "NAME", "Accepted for torchrun's sake; both values mean the same here.", "static",
       "static or c10d", true},
      {group, "rdzv-endpoint", 0, "HOST[:PORT]",
       "Where node 0 listens and the other nodes connect. On one node: MASTER_ADDR and MASTER_PORT if those options "
       "are not given.",
       "", absl::StrFormat("port 0 to 65535; with several nodes 1 to 65535, and %d if none is given", kEndpointPort),
       true},
      {group, "token-file", 0, "FILE",
       "File with the job token, which protects every connection of the job; the same on all nodes. KEEPSTEP_TOKEN may "
       "hold the token instead.",
       "a random token; required with several nodes, except under srun (--token-dir)",
       "32 to 4096 characters; a file that other users can read is refused"},
      {group, "token-dir", 0, "DIR",
       "Under srun, with several nodes and no token: where node 0 leaves a random token for the other nodes. Only this "
       "user can read the file; it is removed once all nodes have joined.",
       "~/.keepstep", "a folder that all nodes share and only this user can write to"},
      {group, "data-plane", 0, "tls|plain",
       "How the ranks' data is protected between nodes. tls: encrypted. plain: others on the network can read it, but "
       "cannot change it unnoticed; faster, for a private network.",
       "tls", "node 0's setting applies to all"},
  };
}

std::vector<RunOption> torchrun_options() {
  const std::string group = "Options of torchrun that are accepted but have no effect";
  const std::string no = "Not supported: an error says what to do instead";
  const auto taken = [&](const char* name, const char* value, const char* why) {
    return RunOption{group, name, 0, value, "", "", why, true, false, Support::kNoEffect};
  };
  const auto refused = [&](const char* name, const char* value, const char* why) {
    return RunOption{no, name, 0, value, "", "", why, true, false, Support::kRefused};
  };
  return {
      taken("monitor-interval", "SECONDS", "keepstep waits for events; it never polls"),
      taken("rdzv-conf", "KEY=VALUE,...", "use --join-timeout for how long nodes may take to join"),
      taken("event-log-handler", "NAME", "events are in the journal (--journal)"),
      taken("signals-to-handle", "NAME,...", "SIGINT, SIGTERM and SIGHUP end the job cleanly"),
      taken("shutdown-timeout", "SECONDS", "keepstep has its own limit for ending workers"),
      taken("log-line-prefix-template", "TEXT", "teed lines begin with [ROLERANK]:"),
      taken("numa-binding", "MODE", "use numactl to bind the job"),
      refused("virtual-local-rank", "", "set CUDA_VISIBLE_DEVICES from LOCAL_RANK at the top of the script"),
      refused("duplicate-stdout-filters", "TEXT,...", "use --log-dir and filter its files with grep"),
      refused("duplicate-stderr-filters", "TEXT,...", "use --log-dir and filter its files with grep"),
      refused("logs-specs", "NAME", "use --log-dir, --redirects and --tee"),
      refused("print-completion", "SHELL", "`keepstep run --help` lists all options"),
  };
}

std::string wrapped(const std::string& text, size_t indent, size_t columns) {
  std::string result;
  std::string line(indent, ' ');
  size_t start = 0;
  while (start < text.size()) {
    size_t end = text.find(' ', start);
    end = end == std::string::npos ? text.size() : end;
    const std::string word = text.substr(start, end - start);
    if (line.size() > indent && line.size() + 1 + word.size() > columns) {
      result += line + "\n";
      line.assign(indent, ' ');
    }
    line += (line.size() > indent ? " " : "") + word;
    start = end + 1;
  }
  return line.size() > indent ? result + line + "\n" : result;
}

std::string names(const RunOption& option) {
  std::string text = option.short_name == 0 ? "" : absl::StrFormat("-%c, ", option.short_name);
  text += option.spelled();
  return option.is_flag() ? text : text + " " + option.value;
}

std::string details(const RunOption& option) {
  std::string text = option.meaning;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (!option.standard.empty()) {
    add("Default: " + option.standard + ".");
  }
  if (!option.bounds.empty()) {
    add((option.support == Support::kFull ? "Values: " : "") + option.bounds + ".");
  }
  if (option.repeatable) {
    add("May be given several times.");
  }
  return text;
}

constexpr const char* kIntroduction =
    "Runs SCRIPT on several ranks, on one machine or several, and replaces ranks that die. Options have torchrun's "
    "names where they mean the same. Everything after SCRIPT is passed to the script. Options can also be written with "
    "underscores (--nproc_per_node); torchrun's can also be set in the environment (PET_NPROC_PER_NODE).";

}  // namespace

std::string RunOption::underscored() const {
  std::string text = name;
  for (char& c : text) {
    c = c == '-' ? '_' : c;
  }
  return "--" + text;
}

std::string RunOption::environment() const {
  std::string text = "PET_";
  for (const char c : name) {
    text += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

const std::vector<RunOption>& run_options_table() {
  static const std::vector<RunOption> table = [] {
    std::vector<RunOption> all;
    for (const auto& part : {world_options(), elastic_options(), script_options(), output_options(), recovery_options(),
                             address_options(), torchrun_options()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

std::string run_help() {
  std::string text =
      "usage: keepstep run [OPTIONS] SCRIPT [ARGUMENTS OF SCRIPT ...]\n\n" + wrapped(kIntroduction, 0, 100);
  std::string group;
  for (const RunOption& option : run_options_table()) {
    if (option.group != group) {
      group = option.group;
      text += "\n" + group + ":\n";
    }
    text += "  " + names(option) + "\n" + wrapped(details(option), 8, 100);
  }
  text +=
      "\nHelp:\n  -h, --help\n        Print this.\n\nexamples:\n"
      "  keepstep run --nproc-per-node 4 train.py --lr 3e-4\n"
      "  keepstep run --standalone --nproc-per-node auto --spares 1 -m my.package.train\n"
      "  keepstep run --nproc-per-node 4 --spares 1 --journal out/run --inject "
      "kill:rank=2,step=20,phase=backward train.py\n"
      "  keepstep run --nnodes 2 --node-rank 0 --nproc-per-node 4 --rdzv-endpoint node-a:29400 --token-file job.token "
      "train.py\n"
      "  keepstep run --nnodes 2:8 --nproc-per-node 4 --rdzv-endpoint node-a:29400 --token-file job.token train.py\n";
  return text;
}

std::string run_help_markdown() {
  const auto cell = [](std::string text) {
    for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
      text.insert(at, "\\");
    }
    return text;
  };
  std::string text = absl::StrFormat(
      "# keepstep run\n\n<!-- Made by `keepstep run --help-markdown`. Do not edit. -->\n\n"
      "`keepstep run [OPTIONS] SCRIPT [ARGUMENTS OF SCRIPT ...]`\n\n%s\n\n"
      "Wrong options end the command with exit code 2; all mistakes are listed first.\n",
      kIntroduction);
  std::string group;
  for (const RunOption& option : run_options_table()) {
    if (option.group != group) {
      group = option.group;
      text += "\n## " + group +
              "\n\n| option | meaning | default | values | environment |\n| --- | --- | --- | --- | --- |\n";
    }
    const std::string again = option.repeatable ? " May be given several times." : "";
    text +=
        absl::StrFormat("| `%s` | %s | %s | %s | %s |\n", cell(names(option)), cell(option.meaning + again),
                        cell(option.standard), cell(option.bounds), option.pet ? "`" + option.environment() + "`" : "");
  }
  return text;
}

}  // namespace keepstep::cli
