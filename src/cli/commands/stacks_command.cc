#include "cli/commands/stacks_command.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "agent/watch/stack_text.h"
#include "cli/commands/asked_job.h"
#include "cli/commands/print.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep stacks [JOB] [--native] [--token-file FILE] [--rdzv-id ID] [--json]

Shows what every rank of a running job on this machine is doing: the stacks of its Python threads. py-spy reads them
from outside, so this works even if a rank hangs, holds the GIL, or is stopped. Ranks that do the same thing form one
group; the odd ones out come first, spares last.

  JOB                the job's name (`keepstep jobs`), its journal's folder, or its launcher's pid; optional if
                     only one job runs. Or, from any machine, HOST:PORT, the job's --rdzv-endpoint: then node 0's
                     launcher answers. With several nodes each launcher shows its own ranks
  --native           show C and C++ frames too; takes longer
  --token-file FILE  the job token, for HOST:PORT; default: KEEPSTEP_TOKEN
  --rdzv-id ID       the job's --rdzv-id, for HOST:PORT, if it has one
  --json             print one JSON object per rank and line

exit codes: 0 success; 1 no such job, or it does not answer; 2 wrong options.
)";

constexpr std::chrono::milliseconds kLimit = std::chrono::minutes(2);  // many ranks take turns, each with its own limit

}  // namespace

int stacks_main(const std::vector<std::string>& args) {
  std::string word;
  bool native = false;
  bool as_json = false;
  KeyOptions key;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (key.take(args, i)) {
      continue;
    }
    if (arg == "--native") {
      native = true;
    } else if (arg == "--json") {
      as_json = true;
    } else if (word.empty() && !arg.starts_with("-")) {
      word = arg;
    } else {
      std::fprintf(stderr, "keepstep stacks: '%s' is %s\n%s", arg.c_str(),
                   KeyOptions::is_one(arg) ? "an option that needs a value"
                   : arg.starts_with("-")  ? "no option"
                                           : "one job too many",
                   kHelp);
      return 2;
    }
  }
  const auto fail = [](const Status& status) {
    print_line(stderr, absl::StrCat("keepstep stacks: ", status.message()));
    return 1;
  };
  const AskedJob job = asked_job(word, key, environment());
  if (say_lines("stacks", job.mistakes)) {
    return 2;
  }
  const StatusOr<nlohmann::json> answer = ask_job(job, {{"op", "stacks"}, {"native", native}}, kLimit);
  if (!answer.ok()) {
    return fail(answer.status());
  }
  std::vector<agent::RankStacks> ranks;
  try {
    for (const nlohmann::json& each : answer->at("ranks")) {
      ranks.push_back(agent::rank_stacks_from(each));
      if (as_json) {
        print_json(each);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return fail(absl::InvalidArgumentError(
        absl::StrFormat("the launcher gives an answer that this version does not understand: %s", error.what())));
  }
  if (!as_json) {
    print_text(stdout, agent::stacks_as_text(ranks));
  }
  return 0;
}

}  // namespace keepstep::cli
