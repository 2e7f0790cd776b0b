#include "cli/commands/inject_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "agent/job/inject_spec.h"
#include "cli/commands/asked_job.h"
#include "cli/commands/print.h"

namespace keepstep::cli {
namespace {

std::string help() {
  return absl::StrFormat(R"(usage: keepstep inject [JOB] FAULT [--token-file FILE] [--rdzv-id ID]

Injects a fault into a running job, to see how the job handles it. The journal records the fault before it happens.
The job must have been started with --allow-inject.

  JOB                the job's name (`keepstep jobs`), its journal's folder, or its launcher's pid; optional if
                     only one job runs. Or, from any machine, HOST:PORT, the job's --rdzv-endpoint: then node 0's
                     launcher carries the fault out
  FAULT              KIND[:KEY=VALUE,...] as for `keepstep run --inject` (docs/reference/inject.md). Without rank,
                     step or phase: the first rank to get there, now or at its next step
  --token-file FILE  the job token, for HOST:PORT; default: KEEPSTEP_TOKEN
  --rdzv-id ID       the job's --rdzv-id, for HOST:PORT, if it has one

kinds:  %s
phases: %s

examples:
  keepstep inject kill:rank=2                    SIGKILL, now
  keepstep inject train-4f2a stop:seconds=20     one rank stops for 20 s
  keepstep inject out/run exception:step=500     the first rank to reach step 500 raises
  keepstep inject slow:rank=1,factor=3,times=50  rank 1 computes 3 times as long, for 50 steps

exit codes: 0 the job accepted the fault; 1 no such job, or it refused; 2 wrong options or unknown fault.
)",
                         agent::inject_kinds(), agent::inject_phases());
}

}  // namespace

int inject_main(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      std::fputs(help().c_str(), stdout);
      return 0;
    }
  }
  KeyOptions key;
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!key.take(args, i)) {
      words.push_back(args[i]);
    }
  }
  const bool option = std::any_of(words.begin(), words.end(), [](const auto& word) { return word.starts_with("-"); });
  if (words.empty() || words.size() > 2 || option) {
    std::fprintf(stderr, "keepstep inject: it takes [JOB] FAULT [--token-file FILE] [--rdzv-id ID]\n%s",
                 help().c_str());
    return 2;
  }
  const auto fail = [](const Status& status, int code) {
    print_line(stderr, absl::StrCat("keepstep inject: ", status.message()));
    return code;
  };
  if (const auto spec = agent::parse_inject(words.back(), agent::InjectFor::kNow); !spec.ok()) {
    return fail(spec.status(), 2);
  }
  const AskedJob job = asked_job(words.size() == 2 ? words[0] : "", key, environment());
  if (say_lines("inject", job.mistakes)) {
    return 2;
  }
  const StatusOr<nlohmann::json> answer =
      ask_job(job, {{"op", "inject"}, {"fault", words.back()}}, std::chrono::seconds(10));
  if (!answer.ok()) {
    return fail(answer.status(), 1);
  }
  print_line(stdout, answer->value("done", ""));
  return 0;
}

}  // namespace keepstep::cli
