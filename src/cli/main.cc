// The command `keepstep`: picks the subcommand. `run` is built in; commands written in Python are passed to Python.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cli/commands/ask_command.h"
#include "cli/commands/inject_command.h"
#include "cli/commands/jobs_command.h"
#include "cli/commands/machine_command.h"
#include "cli/commands/memory_command.h"
#include "cli/commands/node_command.h"
#include "cli/commands/python_command.h"
#include "cli/commands/rendezvous_bench.h"
#include "cli/commands/run_command.h"
#include "cli/commands/scale_command.h"
#include "cli/commands/stacks_command.h"
#include "cli/commands/version_command.h"
#include "cli/options/suggest.h"

namespace keepstep::cli {
namespace {

constexpr const char* kOverview =
    R"(keepstep: training that keeps step. Any rank of a PyTorch job may die; the job continues, and no step is lost.

usage: keepstep COMMAND ...

commands:
  run      start a training script on several ranks, with torchrun's options
  doctor   check that this machine and its peers can run jobs
  report   show what happened in a run: recoveries with their phases, goodput, lost rank-seconds
  certify  run your script through a set of faults and show what it survives
  migrate  turn the launch of a torchrun or HyperPod job into one of keepstep
  recipe   pre-train and fine-tune known models: jobs that are there, to be run and copied
  ckpt     inspect, verify, export and remove checkpoints
  memory   checkpoints in memory that outlive jobs: status, stop, serve (writers start it themselves)
  weights  list or save the weights that a running job publishes
  data     build token corpora from text, and inspect them
  bench    measure recovery, or the cost of a step, on this machine
  jobs     list your jobs on this machine
  stacks   show what every rank of a running job is doing
  inject   inject a fault into a running job
  scale    show or change the size and policy of a running elastic job
  node     serve ranks that torchrun or srun started (they start it themselves)
  version  print the version; with --json also everything it was built with

  keepstep COMMAND --help    show all options of a command

examples:
  keepstep run --nproc-per-node 4 train.py --lr 3e-4      where you had torchrun
  keepstep run --nproc-per-node 4 --spares 1 --journal out/run train.py
  keepstep report out/run
  keepstep doctor                                         on a new machine, before the first job
  keepstep bench recovery --against torchrun --json

exit codes: 0 success; 2 wrong options (all mistakes are listed); otherwise the failed rank's exit code.
)";

// Passed to Python unchanged.
const std::map<std::string, std::string>& python_commands() {
  static const std::map<std::string, std::string> commands = {
      {"report", "keepstep.report"}, {"certify", "keepstep.certify"},     {"migrate", "keepstep.migrate"},
      {"recipe", "keepstep.recipe"}, {"bench", "keepstep.bench"},         {"ckpt", "keepstep.checkpoint"},
      {"data", "keepstep.data"},     {"weights", "keepstep.publications"}};
  return commands;
}

int unknown_command(const std::string& command) {
  std::vector<std::string> known = {"run",    "node",   "jobs",    "stacks", "inject",   "scale",
                                    "doctor", "memory", "version", "--help", "--version"};
  for (const auto& [name, module] : python_commands()) {
    known.push_back(name);
  }
  const std::string meant = nearest(command, known);
  std::fprintf(stderr, "keepstep: unknown command '%s'%s\n", command.c_str(),
               meant.empty() ? "" : ("; did you mean '" + meant + "'?").c_str());
  if (command.ends_with(".py")) {
    std::fprintf(stderr, "To train with a script: keepstep run %s\n", command.c_str());
  }
  std::fprintf(stderr, "`keepstep --help` lists the commands.\n");
  return 2;
}

int main(const std::vector<std::string>& argv) {
  if (argv.size() < 2) {
    std::fputs(kOverview, stderr);
    return 2;
  }
  const std::string& command = argv[1];
  const std::vector<std::string> args(argv.begin() + 2, argv.end());
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kOverview, stdout);
    return 0;
  }
  if (command == "version" || command == "--version") {
    return version_main(args);
  }
  if (command == "run") {
    return run_main(args);
  }
  if (command == "doctor") {
    return doctor_main(args);
  }
  if (command == "node") {
    return node_main(args);
  }
  if (command == "memory") {
    return memory_main(args);
  }
  if (command == "jobs") {
    return jobs_main(args);
  }
  if (command == "stacks") {
    return stacks_main(args);
  }
  if (command == "inject") {
    return inject_main(args);
  }
  if (command == "scale") {
    return scale_main(args);
  }
  if (command == "ask") {  // not in the overview: programs use it, such as `keepstep ckpt`
    return ask_main(args);
  }
  if (command == "machine") {  // not in the overview: `keepstep doctor` uses it
    return machine_main(args);
  }
  if (command == "rendezvous-bench") {  // not in the overview: `keepstep bench rendezvous` starts it
    return rendezvous_bench_main();
  }
  if (const auto found = python_commands().find(command); found != python_commands().end()) {
    return exec_python(found->second, args);
  }
  return unknown_command(command);
}

}  // namespace
}  // namespace keepstep::cli

int main(int argc, char** argv) { return keepstep::cli::main(std::vector<std::string>(argv, argv + argc)); }
