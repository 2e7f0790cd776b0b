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
       "Ranks on this node, equal on all. auto: one per GPU where there are any, else one per CPU this process may "
       "use; "
       "cpu, gpu: one per CPU, one per GPU.",
       "1", absl::StrFormat("1 to %d; with several nodes to %d", kMaxRanksPerNode, kMaxRanksOfSeveral), true},
      {group, "spares", 0, "N",
       "Workers that wait on each node beside the ranks, with the script imported and the model built, to replace one "
       "that "
       "dies.",
       "0", absl::StrFormat("0 to %d; with --no-python for programs that attach", kMaxSpares)},
      {group, "nnodes", 0, "N|MIN:MAX",
       "Nodes of the job, with --nproc-per-node ranks each. One `keepstep run` is started on every node, with the same "
       "options but --node-rank. MIN:MAX: the job is elastic. It starts with MIN nodes or more, grows as others come, "
       "and shrinks when nodes leave (see Elastic jobs, below).",
       "1; under srun the nodes of the step but the --spare-nodes",
       absl::StrFormat("1 to %d; MIN not above MAX, and where both are the same the job is not elastic", kMaxNodes),
       true},
      {group, "node-rank", 0, "N",
       "Number of this node. Node 0 has the coordinator: the job ends when it does. Its address is the one that "
       "--rdzv-endpoint names. Give it on all nodes or on none.",
       "the one that can listen at the endpoint is node 0, all others get numbers in the order in which they come; "
       "under srun Slurm's",
       "below --nnodes; spare nodes have the numbers that follow", true},
      {group, "spare-nodes", 0, "N", "Nodes beyond --nnodes that join and wait, to take the place of one that is lost.",
       "0",
       absl::StrFormat("0 to %d; none where the job is elastic: there nodes beyond what it uses wait anyway",
                       kMaxNodes)},
      {group, "join-timeout", 0, "SECONDS", "How long a node waits for the others to come, and for the coordinator.",
       "600", absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "role", 0, "NAME", "Name of the ranks' role: ROLE_NAME, and the prefix of teed lines.", "default", "",
       true},
  };
}

std::vector<RunOption> elastic_options() {
  const std::string group = "Elastic jobs (each of these options makes a job elastic, also on one node)";
  const std::string seconds =
      absl::StrFormat("0 to %.0f", std::chrono::duration<double>(brain::ElasticConfig::kMaxTime).count());
  const std::string replicas = absl::StrFormat("1 to %d", brain::ElasticConfig::kMaxReplicas);
  const brain::ElasticConfig standard;
  const auto text = [](brain::Time time) { return absl::StrFormat("%g", std::chrono::duration<double>(time).count()); };
  return {
      {group, "ranks-per-replica", 0, "R",
       "Ranks that come and go together: what the other options here count. Less than --nproc-per-node: several "
       "replicas on a node; more: a replica is several whole nodes.",
       "--nproc-per-node: a replica is a node", "a divisor or a multiple of --nproc-per-node"},
      {group, "min-replicas", 0, "N", "The job never runs with fewer (minReplicas).",
       "what the MIN nodes of --nnodes hold, or the smallest of --replica-discrete-values", replicas},
      {group, "max-replicas", 0, "N", "The job never runs with more (maxReplicas).",
       "what the MAX nodes of --nnodes hold, or the largest of --replica-discrete-values",
       replicas + ", and no more than the nodes hold"},
      {group, "replica-increment-step", 0, "N",
       "Sizes go from --min-replicas to --max-replicas in such steps (replicaIncrementStep).",
       std::to_string(standard.increment_step), "must lead to --max-replicas"},
      {group, "replica-discrete-values", 0, "N,...", "The sizes that the job may have (replicaDiscreteValues).",
       "all of --replica-increment-step", "between --min-replicas and --max-replicas; not with steps"},
      {group, "scaling-timeout", 0, "SECONDS",
       "How long nodes must have been present without a break before the job grows onto them "
       "(scalingTimeoutInSeconds).",
       text(standard.scaling_timeout), seconds},
      {group, "graceful-shutdown-timeout", 0, "SECONDS",
       "How long a node may take to leave after SIGTERM: it ends its step and hands over its state, and the job goes "
       "on with its "
       "next step. After that it ends anyway, as a lost node (gracefulShutdownTimeoutInSeconds).",
       text(standard.graceful_shutdown_timeout), seconds},
      {group, "faulty-scale-down-timeout", 0, "SECONDS",
       "How long the job waits for the replacement of a lost node before it goes on with fewer "
       "(faultyScaleDownTimeoutInSeconds).",
       text(standard.faulty_scale_down_timeout), seconds},
      {group, "scale-up-snooze-time", 0, "SECONDS",
       "How long after nodes left or were lost the job does not grow (scaleUpSnoozeTimeInSeconds).",
       text(standard.scale_up_snooze), seconds},
      {group, "min-change-interval", 0, "SECONDS",
       "The shortest time between a change of size and the next voluntary one (minChangeIntervalInSeconds).",
       text(standard.min_between_changes), seconds},
      {group, "elastic-backoff", 0, "FACTOR",
       "What --min-change-interval is multiplied by each time such a change comes soon after the one before "
       "(backoffFactor).",
       absl::StrFormat("%g", standard.backoff_factor), "1 (no backoff) to 100"},
      {group, "elastic-max-backoff", 0, "SECONDS", "... up to this (maxBackoffInSeconds).", text(standard.max_backoff),
       seconds + ", at least --min-change-interval"},
      {group, "elastic-policy", 0, "FILE",
       "YAML file with these values under the names in brackets; options given beside it win. `keepstep scale` changes "
       "them while the job runs. Those of node 0 count. See elastic.md.",
       "none", "all mistakes in it are listed before anything starts"},
  };
}

std::vector<RunOption> script_options() {
  const std::string group = "What to run";
  return {
      {group, "module", 'm', "", "SCRIPT is the name of a Python module, run as by `python -m`.", "", "", true},
      {group, "no-python", 0, "",
       "SCRIPT is a program, started without Python (a path, or a name in PATH). A fault restarts all ranks, unless "
       "the "
       "program attaches by include/keepstep/trainer.h: then its ranks are replaced as those of a script are.",
       "", "not with --module", true},
      {group, "run-path", 0, "",
       "Run SCRIPT inside an interpreter that is already there; keepstep always does. Takes precedence over "
       "--no-python.",
       "", "", true},
      {group, "start-method", 0, "spawn|fork|forkserver|exec",
       "How worker processes are made. torchrun's three all mean: forked from a zygote that has torch imported. exec: "
       "each by a new interpreter (slower; needed where imports start threads).",
       "fork", "one of spawn, fork, forkserver, exec", true},
      {group, "no-preload", 0, "", "The zygote imports torch only, not what the first worker was seen to import.", "",
       ""},
      {group, "seed", 0, "N", "Seed of the run's random numbers, the same for every rank.", "0",
       "0 to 18446744073709551615"},
  };
}

std::vector<RunOption> output_options() {
  const std::string group = "Output";
  return {
      {group, "log-dir", 0, "DIR",
       "Files with each rank's output, per generation: DIR/RUN_ID/attempt_GENERATION/RANK/stdout.log and stderr.log; "
       "a spare's before it has a rank: DIR/RUN_ID/spares/WORKER. Existing files are appended to. /dev/null: no files.",
       absl::StrFormat("none; %s where --redirects or --tee ask for files", kDefaultLogDir), "", true},
      {group, "redirects", 'r', "STREAMS",
       "Streams that go to files only. 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:2.", "0",
       "0 to 3, or RANK:STREAMS,... with ranks below --nproc-per-node", true},
      {group, "tee", 't', "STREAMS",
       "Streams that go to files and, with the prefix [ROLERANK]:, to the console. Values as for --redirects.", "0",
       "0 to 3, or RANK:STREAMS,... with ranks below --nproc-per-node", true},
      {group, "local-ranks-filter", 0, "RANK,...",
       "Ranks whose output is shown on the console. Files are not filtered.", "all", "ranks below --nproc-per-node",
       true},
      {group, "journal", 0, "DIR",
       "Where the journal goes: DIR/journal.jsonl (every decision with its reason) and DIR/metrics.jsonl (every "
       "committed step). `keepstep report DIR` reads them. Node N of several writes what it sees itself into "
       "DIR/journal.nodeN.jsonl and DIR/metrics.nodeN.jsonl.",
       "none", "a directory without the journal of an earlier run"},
  };
}

std::vector<RunOption> recovery_options() {
  const std::string group = "Recovery";
  return {
      {group, "max-restarts", 0, "N",
       "How often all ranks may be restarted in the job's life when replacing a process does not help: with the state "
       "of those that hold it, else from the first step. (torchrun's default is 0.)",
       "3", "0 or more", true},
      {group, "node-faults", 0, "N",
       "A node on which this many rank processes died (or were caught with flipped bits) within --fault-window gets "
       "no more ranks: they move to a spare node (--spare-nodes). Without one, and on the node of rank 0, "
       "processes "
       "are replaced there as before. 0: nodes are replaced only when they are lost.",
       "3", absl::StrFormat("0 to %d", kMaxNodeFaults)},
      {group, "fault-window", 0, "SECONDS", "Faults of a node that are older are forgotten.", "600",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "node-timeout", 0, "SECONDS",
       "How long a lost node's ranks wait for a node to take them, where no spare node waits; then the job ends. An "
       "elastic job goes on without them first, where it may.",
       "60", absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "interrupt-timeout", 0, "SECONDS",
       "A rank that does not leave an interrupted step within this time is killed and replaced.", "60",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "hang-timeout", 0, "auto|SECONDS|off",
       "A rank for which others wait this long while nobody makes progress is taken for hung, killed and replaced. "
       "auto: twice as long as a step takes, or as the others needed for the same, and half a second. A stopped "
       "process "
       "(SIGSTOP) is replaced at once. Sections of run.slow are exempt.",
       "auto", absl::StrFormat("auto, off, or seconds above 0 and at most %g", kMaxSeconds)},
      {group, "check", 0, "",
       "Check every step, not only the first ones, for protected tensors that change outside the commit and for "
       "modules and optimizers that are not protected. Costs time.",
       "", ""},
      {group, "digests", 0, "auto|on|off",
       "Before each vote the ranks compare digests of their reduced gradients. Where they differ the step does not "
       "count: it is redone, and the rank that differs from most is replaced. auto: where a wrapper makes gradients "
       "equal on all ranks (on: always). See docs/design/corruption.md.",
       "auto", "auto, on or off"},
      {group, "digest-every", 0, "STEPS",
       "How often protected parameters and optimizers are compared in the same way, where gradients are. Steps since "
       "the last comparison are not undone.",
       "50", "0: never"},
      {group, "health-check", 0, "on|off",
       "Whether a worker is checked before it may have a rank (a computation with a known result, memory, sums and "
       "messages to itself, what the driver says of GPUs; `health_check=` of the script), and nodes now and then "
       "(memory, disk, clock, GPUs). A worker that fails is replaced.",
       "on", "on or off"},
      {group, "health-interval", 0, "SECONDS", "How often a node is checked.", "60",
       absl::StrFormat("above 0, at most %g", kMaxSeconds)},
      {group, "clock-limit", 0, "SECONDS|off",
       "How far the wall clock of a node may be from that of node 0. It is compared when a node comes and every "
       "--health-interval; node 0 reports which clock is further off, and by how much.",
       "1", absl::StrFormat("off, or seconds above 0 and at most %g; the same on all nodes", kMaxSeconds)},
      {group, "clocks-apart", 0, "warn|refuse",
       "What happens when a node joins whose clock is off by more than --clock-limit: a warning, or it is refused.",
       "warn", "warn or refuse; the same on all nodes"},
      {group, "on-notice", 0, "stop|requeue",
       "After SIGUSR1 (under Slurm also SIGTERM) the ranks finish their step, what the script gave to "
       "run.on(\"notice\", ...) is called, and the job ends with exit code 75. requeue: then `scontrol requeue` is "
       "called for Slurm's job, unless that ends anyway.",
       "stop", "stop or requeue; see slurm.md"},
      {group, "log-rules", 0, "FILE",
       "YAML file with rules about what ranks print: a line that must not come, must come in time, or holds a number "
       "out of bounds; the rank is journalled or replaced, or the job stopped. See log_rules.md.",
       "none", "all mistakes in it are listed before anything starts"},
      {group, "inject", 0, "FAULT",
       absl::StrFormat("A fault to cause: KIND:rank=R|any,step=K,phase=P[,on=spare]. KIND: %s. P: %s. Example: "
                       "kill:rank=2,step=20,phase=backward. Other keys, and what each kind does: "
                       "docs/reference/inject.md.",
                       agent::inject_kinds(), agent::inject_phases()),
       "none", "R below the number of ranks, K from 1; with --no-python for programs that attach", false, true},
      {group, "allow-inject", 0, "",
       "`keepstep inject` may cause faults while the job runs, on this node. Without it the launcher refuses.", "", ""},
  };
}

std::vector<RunOption> address_options() {
  const std::string group = "Addresses";
  return {
      {group, "standalone", 0, "",
       "One node, free ports: --rdzv-endpoint, --master-addr and --master-port are left alone.", "", "", true},
      {group, "master-addr", 0, "HOST",
       "MASTER_ADDR of the ranks. With several nodes and no --rdzv-endpoint: the address of node 0.",
       "127.0.0.1; with several nodes that of node 0", "an address of this node, or of node 0", true},
      {group, "master-port", 0, "PORT",
       "MASTER_PORT of the ranks. With several nodes and no --rdzv-endpoint: where node 0 listens. (torchrun's default "
       "is 29500.)",
       absl::StrFormat("a free one; %d with several nodes and --master-addr", kMasterPort), "0 (a free one) to 65535",
       true},
      {group, "local-addr", 0, "HOST",
       "Address of this node: where other nodes reach its ranks. On one node: MASTER_ADDR where --master-addr is not "
       "given.",
       "that of the route to the endpoint", "an address of this node", true},
      {group, "rdzv-id", 0, "ID",
       "Name of the run, the same on all nodes: TORCHELASTIC_RUN_ID, the folder of log files, and a part of the job's "
       "key.",
       "none", "a name without a slash", true},
      {group, "rdzv-backend", 0, "NAME", "Taken as torchrun's; both mean the same here.", "static", "static or c10d",
       true},
      {group, "rdzv-endpoint", 0, "HOST[:PORT]",
       "Where node 0 listens and all others connect. On one node: MASTER_ADDR and MASTER_PORT where those options are "
       "not given.",
       "", absl::StrFormat("a port from 0 to 65535; with several nodes from 1, %d where none is given", kEndpointPort),
       true},
      {group, "token-file", 0, "FILE",
       "File with the job token that guards every connection of the job, the same on all nodes; KEEPSTEP_TOKEN may "
       "hold "
       "the token instead.",
       "a random token; must be given for several nodes, but not under srun (--token-dir)",
       "32 to 4096 characters; a file that others can read is refused"},
      {group, "token-dir", 0, "DIR",
       "Under srun, with several nodes and no token: where node 0 leaves a random one for the others, in a file for "
       "this user alone that is removed once all have come.",
       "~/.keepstep", "a folder that all nodes share and nobody else may write to"},
      {group, "data-plane", 0, "tls|plain",
       "How the ranks' data is protected between nodes. tls: encrypted. plain: others on the network can read it, and "
       "nobody can change it unnoticed; faster, for a network of the cluster's own.",
       "tls", "that of node 0 holds for all"},
  };
}

std::vector<RunOption> torchrun_options() {
  const std::string group = "Options of torchrun that are accepted and have no effect";
  const std::string no = "Not supported: an error says what to do instead";
  const auto taken = [&](const char* name, const char* value, const char* why) {
    return RunOption{group, name, 0, value, "", "", why, true, false, Support::kNoEffect};
  };
  const auto refused = [&](const char* name, const char* value, const char* why) {
    return RunOption{no, name, 0, value, "", "", why, true, false, Support::kRefused};
  };
  return {
      taken("monitor-interval", "SECONDS", "keepstep waits for events and never polls"),
      taken("rdzv-conf", "KEY=VALUE,...", "give --join-timeout for the time that nodes may take to come"),
      taken("event-log-handler", "NAME", "events are in the journal (--journal)"),
      taken("signals-to-handle", "NAME,...", "SIGINT, SIGTERM and SIGHUP end the job cleanly"),
      taken("shutdown-timeout", "SECONDS", "keepstep ends its workers within its own limit"),
      taken("log-line-prefix-template", "TEXT", "teed lines begin with [ROLERANK]:"),
      taken("numa-binding", "MODE", "bind the job with numactl where that matters"),
      refused("virtual-local-rank", "", "set CUDA_VISIBLE_DEVICES from LOCAL_RANK at the start of the script"),
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
    add((option.support == Support::kFull ? "Bounds: " : "") + option.bounds + ".");
  }
  if (option.repeatable) {
    add("May be given several times.");
  }
  return text;
}

constexpr const char* kIntroduction =
    "Starts SCRIPT on several ranks of this machine, or of several, with torchrun's options where they mean the same, "
    "and "
    "replaces ranks that die. All after SCRIPT belongs to the script. Every option is also known with underscores "
    "(--nproc_per_node); torchrun's are also read from the environment (PET_NPROC_PER_NODE).";

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
      "`keepstep run [OPTIONS] SCRIPT [ARGUMENTS OF SCRIPT ...]`\n\n%s\n\nWrong options end the command with exit code "
      "2, "
      "after all mistakes were listed.\n",
      kIntroduction);
  std::string group;
  for (const RunOption& option : run_options_table()) {
    if (option.group != group) {
      group = option.group;
      text += "\n## " + group +
              "\n\n| option | meaning | default | bounds | environment |\n| --- | --- | --- | --- | --- |\n";
    }
    const std::string again = option.repeatable ? " May be given several times." : "";
    text +=
        absl::StrFormat("| `%s` | %s | %s | %s | %s |\n", cell(names(option)), cell(option.meaning + again),
                        cell(option.standard), cell(option.bounds), option.pet ? "`" + option.environment() + "`" : "");
  }
  return text;
}

}  // namespace keepstep::cli
